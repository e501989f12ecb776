// The names in the fuzz corpus say what to expect: good_* is read, bad_* is refused. A corpus of
// which nothing is read would only fuzz the first check.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "formats/bytes_builder.h"
#include "formats/gguf.h"
#include "formats/llama2c.h"
#include "formats/safetensors.h"

namespace mr::formats {
namespace {

TEST(Corpus, IsWhatItsNamesSay) {
    const std::pair<const char*, std::function<void(const std::string&)>> formats[] = {
        {"gguf", [](const std::string& path) { GgufFile::open(path); }},
        {"safetensors", [](const std::string& path) { SafetensorsFile::open(path); }},
        {"llama2c", [](const std::string& path) { Llama2cFile::open(path); }},
    };
    for (const auto& [name, open] : formats) {
        int good = 0, bad = 0;
        const std::string folder = std::string(MR_SOURCE_DIR) + "/tests/fuzz/corpus/" + name;
        for (const auto& entry : std::filesystem::directory_iterator(folder)) {
            const std::string path = entry.path().string();
            SCOPED_TRACE(path);
            if (entry.path().filename().string().starts_with("good_")) {
                EXPECT_NO_THROW(open(path));
                ++good;
            } else {
                EXPECT_HAS(input_error([&] { open(path); }), path);
                ++bad;
            }
        }
        EXPECT_GE(good, 2) << name;
        EXPECT_GE(bad, 15) << name;
    }
}

}  // namespace
}  // namespace mr::formats
