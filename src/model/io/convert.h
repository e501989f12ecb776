// Writes any readable model as GGUF or safetensors, holding about one tensor in memory at a
// time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/progress.h"

namespace mr::model {

struct ConvertOptions {
    // f32, f16, bf16, q8_0 or q4_0 (GGUF only) for the matrices. None: unchanged where the format
    // can hold them (quantised ones become f16 in safetensors).
    std::optional<DType> type{};
    std::string tokenizer{};  // a path; empty: the one in or beside the model
    bool force = false;       // replace existing files besides the one that `out` names
    // A matrix with a number that its type cannot hold stays bf16 or f32. Without this it is an
    // error. All weights are read once more to find such numbers.
    bool keep_outliers = false;
    std::vector<std::string> ignore_keys{};  // LoadOptions::ignore_keys
    Progress progress{};
};

struct ConvertResult {
    std::vector<std::string> files;  // written, the weights first
    std::uint64_t bytes = 0;         // of weights
    std::uint64_t tensors = 0;
    std::vector<std::string> notes;  // for the user: fallbacks, and what was left out
};

// `out` ends in .gguf, or in .safetensors (config.json goes beside it), or is a folder, which gets
// config.json, model.safetensors and, where the source has a tokenizer, tokenizer.json (copied, or
// made from the vocabulary of a GGUF or llama2.c file).
//
// Norms and biases stay f32, and so do learned positions in quantised files. A matrix whose rows
// are not a whole number of blocks becomes f16. q4_0 files hold the LM head (the embedding, where
// tied) in q8_0: it decides between tokens and is only one matrix of many.
//
// The file that `out` names is replaced. In a folder the files of an older model need `force`; then
// all of them go, whatever the new one is made of, and other files stay (model_folder.h). Either is
// done in one step or leaves a folder without config.json if the process is killed. A .safetensors
// file gets its companions (config.json, tokenizer.json, ...) only if the folder has none of them,
// or with `force`; otherwise they stay as they are, and a note says so.
//
// Throws Error (usage) if it would overwrite its own input or a file that needs `force`; leaves
// nothing behind on failure.
ConvertResult convert_model(const std::string& in, const std::string& out,
                            const ConvertOptions& options = {});

}  // namespace mr::model
