#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/mapped_file.h"
#include "model/model_files.h"

namespace mr::model {

// A copy of a reference folder whose config.json the test may change.
class Spoiled {
  public:
    explicit Spoiled(const std::string& name) {
        for (const auto& entry : fs::directory_iterator(reference(name))) {
            if (entry.path().filename() == "expected.safetensors") continue;
            fs::copy(entry.path(), folder_ / entry.path().filename().string());
        }
        config = nlohmann::json::parse(read_text_file(folder_ / "config.json"));
    }
    std::string path() {
        std::ofstream(folder_ / "config.json") << config.dump();
        return folder_.path();
    }
    const TempFolder& folder() const { return folder_; }
    nlohmann::json config;

  private:
    TempFolder folder_;
};

}  // namespace mr::model
