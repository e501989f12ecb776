// A safetensors file without the checksums that this program writes: as older versions wrote it, or
// to change its tensors on purpose.
#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "temp_folder.h"

namespace mr::test {

inline void remove_sums(const std::string& path) {
    const std::string all = read_all(path);
    std::uint64_t length = 0;
    std::memcpy(&length, all.data(), sizeof length);
    auto header = nlohmann::ordered_json::parse(all.substr(sizeof length, length));
    auto& metadata = header["__metadata__"];
    if (metadata.erase("millrace.sums") + metadata.erase("millrace.header") != 2) {
        throw std::runtime_error(path + " has no checksums");
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    const std::uint64_t now = text.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&now), sizeof now);
    out << text << all.substr(sizeof length + length);
}

}  // namespace mr::test
