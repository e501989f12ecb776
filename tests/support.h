// Shared by several test programs: where data lies.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace mr::test {

// The folder of real weights, tokenizers and texts. Tests that need it skip if it is absent.
inline std::string data_dir() {
    const char* dir = std::getenv("MILLRACE_DATA");
    return dir && *dir ? dir : MR_TEST_DATA;
}

inline std::string data(const std::string& name) { return data_dir() + "/" + name; }

inline bool have(const std::string& path) { return std::filesystem::exists(path); }

inline std::string reference(const std::string& name) {
    return std::string(MR_SOURCE_DIR) + "/tests/reference/" + name;
}

// The bundled model: real weights that are always there.
inline std::string bundled_model() {
    return std::string(MR_SOURCE_DIR) + "/models/storyteller.gguf";
}

}  // namespace mr::test

#define MR_NEED_DATA(path)                                                                  \
    if (!::mr::test::have(path)) {                                                          \
        GTEST_SKIP() << path << " is absent: set MILLRACE_DATA to the folder of test data"; \
    }
