#include "serve/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

namespace mr::serve {
namespace {

constexpr std::uint64_t kSamples = 64, kSampleBytes = 16 << 10;

// FNV-1a: not used for secrets.
class Hash {
  public:
    void add(std::string_view bytes) {
        for (const char c : bytes) {
            state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
        }
    }
    std::uint32_t digits() const { return static_cast<std::uint32_t>(state_ ^ (state_ >> 32)); }

  private:
    std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

void add_file(Hash& hash, const std::filesystem::path& path) {
    std::error_code problem;
    const std::uint64_t size = std::filesystem::file_size(path, problem);
    if (problem) return;
    hash.add(fmt::format("{} {}\n", path.filename().string(), size));
    std::ifstream file(path, std::ios::binary);
    std::string buffer(kSampleBytes, '\0');
    const std::uint64_t step = std::max(size / kSamples, kSampleBytes);
    for (std::uint64_t at = 0; at < size && file; at += step) {
        file.seekg(static_cast<std::streamoff>(at));
        file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
        hash.add(std::string_view(buffer).substr(0, static_cast<std::size_t>(file.gcount())));
        file.clear();
    }
}

}  // namespace

std::string fingerprint(const std::string& build, const std::string& model_source, bool cuda) {
    namespace fs = std::filesystem;
    Hash builds, model;
    builds.add(build);
    std::error_code problem;
    if (fs::is_directory(model_source, problem)) {
        std::vector<fs::path> files;
        for (const auto& entry : fs::directory_iterator(model_source, problem)) {
            const std::string kind = entry.path().extension().string();
            if (kind == ".json" || kind == ".safetensors") files.push_back(entry.path());
        }
        std::sort(files.begin(), files.end());
        for (const fs::path& path : files) add_file(model, path);
    } else if (fs::is_regular_file(model_source, problem)) {
        add_file(model, model_source);
    } else {
        model.add(model_source);  // random:SHAPE
    }
    return fmt::format("mr_{:08x}_{:08x}_{}", builds.digits(), model.digits(),
                       cuda ? "cuda" : "cpu");
}

}  // namespace mr::serve
