// A model as one byte string, so that it can be mutated: a GGUF file as it is, or the files of a
// Hugging Face folder one after another, each after a line of '\x1e' and its name.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "temp_folder.h"

namespace mr::test {

class ModelInput {
  public:
    // Writes the files, replacing those of the last call, and returns the path for load_model().
    std::string write(std::string_view bytes) {
        clear();
        if (bytes.starts_with("GGUF")) return put("model.gguf", bytes);
        while (!bytes.empty()) {
            bytes.remove_prefix(std::min(bytes.size(), bytes.find(kMark)));
            const std::size_t line = bytes.find('\n');
            if (line == bytes.npos) break;
            const std::string_view name = bytes.substr(1, line - 1);
            bytes.remove_prefix(line + 1);
            // Only these names: a mutated one must not leave the folder.
            if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) {
                put(name, bytes.substr(0, bytes.find(kMark)));
            }
        }
        return folder_ / "";
    }

  private:
    static constexpr char kMark = '\x1e';
    static constexpr std::array<std::string_view, 6> kNames = {
        "config.json",   "model.safetensors", "model.safetensors.index.json",
        "a.safetensors", "b.safetensors",     "tokenizer.json"};

    std::string put(std::string_view name, std::string_view bytes) {
        const std::string path = folder_ / std::string(name);
        std::ofstream(path, std::ios::binary)
            .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        return path;
    }
    void clear() {
        for (const std::string_view name : kNames) {
            std::filesystem::remove(folder_ / std::string(name));
        }
    }

    TempFolder folder_;
};

}  // namespace mr::test
