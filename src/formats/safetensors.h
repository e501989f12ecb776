// safetensors, Hugging Face's format: one file, or a folder whose tensors are spread over shards.
// The reader trusts nothing: for any bytes the result is a SafetensorsFile or an Error.
//
// Files that this program writes have checksums in their "__metadata__", which others ignore:
//   "millrace.sums"     of every tensor (tensor_sum.h), in the order of their data: 16 hexadecimal
//                       digits each, with a space between them
//   "millrace.header"   of the header's text, with zeros for the digits of both
// Reading a file checks the header's; check_sums() checks the tensors'.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/output_file.h"
#include "formats/tensor_file.h"
#include "formats/tensor_sum.h"

namespace mr::formats {

class SafetensorsFile {
  public:
    // A .safetensors file, or a folder with model.safetensors or model.safetensors.index.json.
    static SafetensorsFile open(const std::string& path_or_folder);
    // One file's bytes, borrowed; `name` replaces the path in errors.
    static SafetensorsFile parse(std::span<const std::byte> bytes, std::string name);

    // Ordered by file, then by offset. A scalar has shape [1]; BOOL is read as u8.
    const std::vector<FileTensor>& tensors() const { return tensors_; }
    const FileTensor* find_tensor(std::string_view name) const;
    // The "__metadata__" of the file without checksums; for shards, each key's value in the first
    // shard that has it.
    const std::map<std::string, std::string>& metadata() const { return metadata_; }
    const std::string& path() const { return path_; }
    std::span<const MappedFile> maps() const { return maps_; }  // one per shard

  private:
    void read(std::span<const std::byte> bytes, const std::string& file);
    void open_sharded(const std::string& index_path, const std::string& folder);
    void index_names();

    std::vector<MappedFile> maps_;
    std::string path_;
    std::vector<FileTensor> tensors_;
    std::map<std::string, std::size_t, std::less<>> tensor_by_name_;
    std::map<std::string, std::string> metadata_;
};

// Writes one file. declare() every tensor (f32, f16, bf16), then write() the data in the same
// order, in any number of parts, then finish(). Without finish(), nothing is left behind.
class SafetensorsWriter {
  public:
    explicit SafetensorsWriter(const std::string& path) : out_(path) {}

    void set_metadata(std::string_view key, std::string_view value);
    void declare(std::string_view name, DType dtype, const Shape& shape);
    void write(const void* data, std::size_t bytes);
    // `ready` is called once all is on the disk, before the file appears under its name.
    void finish(const std::function<void()>& ready = {});

  private:
    struct Declared {
        std::string name;
        DType dtype;
        Shape shape;
        std::uint64_t bytes() const {
            return dtype_bytes(dtype, static_cast<std::size_t>(shape.count()));
        }
    };

    std::string header(std::string_view sums, std::string_view own) const;
    void write_header();
    void end_whole_tensors();

    OutputFile out_;
    std::map<std::string, std::string> metadata_;
    std::vector<Declared> tensors_;
    std::uint64_t declared_ = 0;  // bytes
    std::uint64_t written_ = 0;
    std::vector<std::uint64_t> sums_;  // of whole tensors
    TensorSum sum_;                    // of the next one, so far
    std::uint64_t left_ = 0;           // bytes of it to come
    std::string plain_header_;         // with zeros for all checksums
    bool header_written_ = false;
};

}  // namespace mr::formats
