// What several test programs share: where data lies, and temporary folders.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

namespace mr::test {

// The folder of real weights, tokenizers and texts. Tests that need it skip where it is absent.
inline std::string data_dir() {
    const char* dir = std::getenv("MILLRACE_DATA");
    return dir && *dir ? dir : MR_TEST_DATA;
}

inline std::string data(const std::string& name) { return data_dir() + "/" + name; }

inline bool have(const std::string& path) { return std::filesystem::exists(path); }

inline std::string reference(const std::string& name) {
    return std::string(MR_SOURCE_DIR) + "/tests/reference/" + name;
}

// A folder that goes away with the test.
class TempDir {
  public:
    TempDir() {
        std::random_device random;
        path_ = std::filesystem::temp_directory_path() /
                ("millrace-" + std::to_string(random()) + "-" + std::to_string(random()));
        std::filesystem::create_directories(path_);
    }
    ~TempDir() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;
    std::string operator/(const std::string& name) const { return (path_ / name).string(); }

  private:
    std::filesystem::path path_;
};

}  // namespace mr::test

#define MR_NEED_DATA(path)                                                                  \
    if (!::mr::test::have(path)) {                                                          \
        GTEST_SKIP() << path << " is absent: set MILLRACE_DATA to the folder of test data"; \
    }
