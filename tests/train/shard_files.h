// Shards in memory, for tests.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "train/shards.h"

namespace mr::train {

// The bytes of a shard file.
class ShardBytes {
  public:
    explicit ShardBytes(const std::vector<std::int32_t>& ids, std::uint32_t vocab = 60000,
                        std::uint32_t bytes_per_token = 2) {
        std::string data;
        for (const std::int32_t id : ids) {
            for (std::uint32_t i = 0; i < bytes_per_token; ++i) {
                data += static_cast<char>(static_cast<std::uint32_t>(id) >> (8 * i));
            }
        }
        text = shard_header_bytes({bytes_per_token, vocab, ids.size(), 42,
                                   fnv1a(std::as_bytes(std::span(data)))}) +
               data;
    }
    std::span<const std::byte> bytes() const { return std::as_bytes(std::span(text)); }

    std::string text;
};

inline Shards shards_of(const std::vector<const ShardBytes*>& files) {
    std::vector<Shard> shards;
    for (const ShardBytes* file : files) shards.push_back(Shard::parse(file->bytes(), "shard"));
    return {std::move(shards), {}};
}

}  // namespace mr::train
