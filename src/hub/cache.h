// Models that were downloaded before: the cache that huggingface_hub, llama.cpp and `millrace pull`
// share, and llama.cpp's older folder.
//
//   CACHE/models--OWNER--NAME/blobs/HASH            the content of files
//                            /refs/main             the commit that the name stands for
//                            /snapshots/COMMIT/...  the files, as links to blobs
//   CACHE/.locks/models--OWNER--NAME/HASH.lock      held while that blob is written
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "hub/reference.h"

namespace mr::hub {

// A variable of the environment; empty if it is not set.
std::string variable(const char* name);
// With the home folder in place of a ~ at the beginning, for paths that no shell has read; as it is
// if there is no home.
std::string with_home(const std::string& path);

// $HF_HUB_CACHE, $HF_HOME/hub, or ~/.cache/huggingface/hub, as huggingface_hub finds it. Empty if
// there is no home folder.
std::filesystem::path cache_folder();
// $HF_HOME or ~/.cache/huggingface: where the token lies.
std::filesystem::path home_folder();

// models--OWNER--NAME
std::string folder_name(const Reference& model);

// OWNER/NAME (or NAME alone) of a path inside of such a cache; else empty.
std::string name_in_cache(const std::filesystem::path& path);

bool is_commit(std::string_view text);

// The folder or the GGUF file of a downloaded model. Empty if it is not here, or not whole.
std::optional<std::string> find_downloaded(const Reference& wanted);

}  // namespace mr::hub
