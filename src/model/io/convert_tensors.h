// The tensors of a conversion: names, types, row order and data of the output. Internal to
// convert.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "model/io/convert.h"
#include "model/io/source.h"
#include "model/names.h"

namespace mr::model {

// The model to convert: an open file, or random weights.
struct ConvertInput {
    std::string path;
    ModelSpec spec;
    std::shared_ptr<const text::Tokenizer> tokenizer;
    Generation generation;
    std::function<RoleTensor(RoleAt)> read;
    std::function<DType(RoleAt)> dtype;
    std::function<void(const Progress&)> check{};  // of all that is read; may be none
};

ConvertInput open_input(const std::string& in, const ConvertOptions& options);

// One tensor of the output: one role, or q, k and v in one.
struct OutTensor {
    std::string name;
    std::vector<RoleAt> parts;
    DType dtype = DType::f32;
    Shape shape;  // in the file
    bool transposed = false;
};

class Converter {
  public:
    using Write = std::function<void(const void* data, std::size_t bytes)>;

    Converter(ConvertInput input, Dialect dialect, const ConvertOptions& options);

    const std::vector<OutTensor>& tensors() const { return tensors_; }
    std::vector<std::string> notes() const;
    std::uint64_t bytes() const { return total_; }
    // The type of most matrices, used as the file's type.
    DType main_type() const;
    // Calls write with the data of every tensor, in order.
    void run(const Write& write);

  private:
    // Row `row` of the output is row `row` of part `part`.
    struct RowRef {
        int part;
        std::int64_t row;
    };
    // Makes the output's bytes of a row; `scratch` belongs to the thread.
    using Fetch =
        std::function<void(std::int64_t row, std::vector<float>& scratch, std::byte* out)>;

    void plan();
    void note_changed_types(std::vector<std::string>& notes) const;
    void add(RoleAt at, std::vector<RoleAt> parts);
    DType choose_type(Role role, const OutTensor& out);
    DType part_type(const OutTensor& out) const;
    // Throws Error (input) if a number does not fit into the tensor's type.
    void require_held(const OutTensor& tensor, const float* row, std::int64_t count) const;
    void keep_outliers();
    // A tied head is the embedding.
    RoleAt stored(RoleAt at) const {
        return at.role == Role::head && input_.spec.tied_embeddings ? RoleAt{Role::embedding} : at;
    }
    DType source_dtype(RoleAt at) const { return input_.dtype(stored(at)); }
    std::vector<RoleTensor> read(const OutTensor& tensor) const;
    std::int64_t rope_row(Role role, std::int64_t row) const;
    std::vector<RowRef> row_order(const OutTensor& tensor) const;
    void write_vector(const OutTensor& tensor, const Write& write);
    void write_rows(std::int64_t rows, std::size_t row_bytes, const Fetch& fetch,
                    const Write& write);
    void write_matrix(const OutTensor& tensor, const Write& write);

    ConvertInput input_;
    Dialect dialect_;
    DialectLayout layout_;
    const ConvertOptions& options_;
    ThreadPool pool_;
    std::vector<OutTensor> tensors_;
    std::vector<std::string> fallbacks_;  // rows are not a whole number of blocks
    std::vector<std::string> kept_;       // numbers do not fit
    std::uint64_t total_ = 0;
    std::vector<std::byte> buffer_;
    std::vector<std::vector<float>> scratch_;  // by thread
};

// Writes the tensors of `converter`. `progress` is called between parts of the data, `ready` once
// all is on the disk, before the file appears.
void write_safetensors(const std::string& path, Converter& converter,
                       const std::function<void()>& progress = {},
                       const std::function<void()>& ready = {});

}  // namespace mr::model
