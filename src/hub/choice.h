// Which files of a repository are a model that the engine can read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hub/reference.h"

namespace mr::hub {

enum class Kind {
    folder,  // a Hugging Face folder: config.json, tokenizer, safetensors
    gguf,    // a GGUF file, or all parts of one
    file,    // a file that was named, whatever it is
};

struct Choice {
    Kind kind = Kind::folder;
    // What belongs to the model. gguf: the parts in order. folder: the names of its shards are in
    // the index, if that is among the files; they are not here.
    std::vector<std::string> files;
    bool sharded = false;  // folder: weights are named by model.safetensors.index.json
};

inline constexpr const char* kIndexName = "model.safetensors.index.json";

// `files`: the paths of all files of the repository; those that are not safe are ignored. Without
// `wanted.what`, a repository with config.json and safetensors is taken as a folder, and one with
// GGUF files gives the first type of usual_types() that it has; else its only GGUF file. Throws
// Error (input) if there is no such file, more than one, or none that the engine reads.
Choice choose(const Reference& wanted, std::vector<std::string> files);

// The order in which types are taken if none is named: Q4_K_M first, as llama.cpp has it.
std::vector<std::string> usual_types();

// The files that an index names, each once. Throws Error (input) for one that is not an index or
// names a file outside of its folder.
std::vector<std::string> shards_of_index(std::string_view json, const std::string& path);

}  // namespace mr::hub
