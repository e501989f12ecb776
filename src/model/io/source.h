// A model file that has been opened and understood but not read: its spec, and its tensors one at a
// time by role. Loading takes all of them; converting takes one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/progress.h"
#include "core/thread_pool.h"
#include "formats/tensor_file.h"
#include "model/model.h"
#include "model/names.h"

namespace mr::model {

// A tensor by role, in the shape of role_shape() and the type that the file has.
struct RoleTensor {
    Tensor view;
    std::shared_ptr<void> owned;  // what the view points into where the file's bytes do not do
};

struct Source {
    ModelSpec spec;
    Dialect dialect = Dialect::gguf;
    std::string path;
    std::string format;
    std::shared_ptr<void> file;  // keeps the maps
    bool expanded = false;       // the matrices are not in the map but in memory of `file`
    std::span<const formats::FileTensor> tensors;
    std::span<const MappedFile> maps;  // that the tensors point into
    std::function<const formats::FileTensor*(std::string_view)> find;
    std::shared_ptr<const text::Tokenizer> tokenizer;
    std::vector<std::string> notes;  // Model::notes
    Generation generation;

    // Where a tensor lies in the file. Throws Error where it is missing, has another shape than the
    // spec asks for, or a type that is not a weight's.
    struct Place {
        const formats::FileTensor* tensor = nullptr;
        Role role = Role::embedding;  // of the tensor in the file: qkv where it is fused
        bool transposed = false;
        // The rows of the role inside of the file's tensor: runs of `run` rows, the first at
        // `first`, a new one every `stride`.
        std::int64_t first = 0, run = 0, stride = 0;
        // The rows are those of the file, one after the other, in order.
        bool contiguous() const { return !transposed && run == stride; }
    };
    Place place(RoleAt at) const;
    RoleTensor read(RoleAt at) const;
    // Throws Error for a tensor that no role of the spec claims: the file holds another model than
    // its configuration says.
    void require_all_known() const;
    // Where the spec has a tied head and the file has one that differs from the embedding: unties
    // them, as transformers does, and notes it.
    void untie_other_head();
};

// Each checks its configuration (spec.validate) and opens the tokenizer that is there.
Source open_huggingface(const std::string& folder, const LoadOptions& options);
Source open_gguf(const std::string& path, const LoadOptions& options);
Source open_llama2c(const std::string& path, const LoadOptions& options);
// Where a path to a training run leads: RUN/checkpoints/step-000500, the newest. Other paths are
// as they are. Throws Error (input) where a run has no checkpoint yet.
inline constexpr const char* kCheckpoints = "checkpoints";
inline constexpr const char* kCheckpointPrefix = "step-";
std::string resolve_run(const std::string& path);
// The checkpoints of a run, RUN/checkpoints/step-000500, by step; none where it is no run.
std::vector<std::string> checkpoint_folders(const std::string& run);
// Where `path` is a run whose newest checkpoint could not be opened and open() takes an older one:
// the error that names it, too.
std::optional<Error> naming_older(const Error& error, const std::string& path,
                                  const std::function<void(const std::string&)>& open);
// open(path), with such errors.
template <typename Open>
auto open_of_run(const std::string& path, const Open& open) {
    try {
        return open(path);
    } catch (const Error& error) {
        const auto known =
            naming_older(error, path, [&](const std::string& older) { open(older); });
        if (known) throw Error(*known);
        throw;
    }
}
// The step of a checkpoint's name, "step-000500"; none where it is no such name.
std::optional<std::int64_t> checkpoint_step(const std::string& name);
// RUN, where the path is RUN/checkpoints/step-000500 by its words; else empty.
std::string run_of_checkpoint(const std::string& path);

// By what the path is. random: is not among them.
Source open_source(const std::string& path, const LoadOptions& options);

// A model to look at: spec, tokenizer, and tensors of type and shape without memory. `source` is
// that of load_model(), random: among them.
Model planned_model(const std::string& source, const LoadOptions& options = {});

// The bytes that load_weights() will map and own, and its tensors without memory. Throws Error for
// a tensor that is missing or unusable, and where there is not the memory.
Weights planned_weights(const Source& source);
// All of them: straight from the map where the engine can use the bytes, else copied, K-quants
// expanded to q8_0.
Weights load_weights(const Source& source, const Weights& planned, const Progress& progress);

// Gives the layers that slide this window, 0: none; slides: [layers]. The last word on the spec:
// what it has of its own later is not that of its layers.
void set_windows(ModelSpec& spec, int window, const std::vector<bool>& slides);

// A tokenizer by path: tokenizer.json (or its folder), a GGUF file, or llama2.c's .bin.
std::shared_ptr<const text::Tokenizer> open_tokenizer(const std::string& path, int vocab);
// Throws Error where the tokenizer has ids that the embedding lacks.
void require_vocab(const ModelSpec& spec, const text::Tokenizer* tokenizer,
                   const std::string& file);

}  // namespace mr::model
