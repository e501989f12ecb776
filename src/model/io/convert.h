// Any model that can be read, written as GGUF or safetensors. Tensor by tensor: what is held at a
// time is about one tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/progress.h"

namespace mr::model {

struct ConvertOptions {
    // f32, f16, bf16, q8_0 or q4_0 (GGUF only) for the matrices. None: as they are, where the
    // format can hold them (quantised ones become f16 in safetensors).
    std::optional<DType> type{};
    std::string tokenizer{};  // a path; empty: the one in or beside the model
    bool force = false;       // replace files that are there beside the one that `out` names
    // A matrix with a number that its type cannot hold stays bf16 or f32. Without this it is an
    // error. All weights are read once more to find them.
    bool keep_outliers = false;
    std::vector<std::string> ignore_keys{};  // LoadOptions::ignore_keys
    Progress progress{};
};

struct ConvertResult {
    std::vector<std::string> files;  // written, the weights first
    std::uint64_t bytes = 0;         // of weights
    std::uint64_t tensors = 0;
    std::vector<std::string> notes;  // what a user should know: fallbacks, what was left out
};

// `out` ends in .gguf, or in .safetensors (config.json goes beside it), or is a folder, which gets
// config.json, model.safetensors and, where the source has a tokenizer, tokenizer.json (copied, or
// made from the vocabulary of a GGUF or llama2.c file).
//
// Norms and biases stay f32, and so do learned positions in quantised files. A matrix whose rows
// are not a whole number of blocks becomes f16. q4_0 files hold the LM head (the embedding, where
// tied) in q8_0: it is what decides between tokens, and one matrix of many.
//
// The file that `out` names is replaced. Of a folder every file that is there already needs
// `force`. A .safetensors file gets its companions (config.json, tokenizer.json, ...) only where
// the folder has none of them; otherwise they stay as they are, and a note says so, unless `force`.
//
// Throws Error (usage) where it would write over its own input or over a file that needs `force`;
// nothing is left behind on failure.
ConvertResult convert_model(const std::string& in, const std::string& out,
                            const ConvertOptions& options = {});

}  // namespace mr::model
