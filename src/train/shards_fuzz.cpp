// Any bytes: either a shard whose every id can be read, or an input error.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/error.h"
#include "train/shards.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using mr::train::Shard;
    const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
    try {
        const Shard shard = Shard::parse(bytes, "fuzz.bin");
        std::array<std::int32_t, 100> ids;
        for (std::uint64_t at = 0; at < shard.tokens(); at += ids.size()) {
            const auto count = std::min<std::uint64_t>(ids.size(), shard.tokens() - at);
            const std::span part(ids.data(), static_cast<std::size_t>(count));
            try {
                shard.read(at, part);
            } catch (const mr::Error&) {  // an id outside the vocabulary; later ones may be good
                continue;
            }
            for (const std::int32_t id : part) {
                if (id < 0 || static_cast<std::uint32_t>(id) >= shard.header().vocab) {
                    __builtin_trap();
                }
            }
        }
        shard.verify();
    } catch (const mr::Error&) {
    }
    return 0;
}
