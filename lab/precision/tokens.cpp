#include "lab/precision/tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/mapped_file.h"
#include "core/philox.h"

namespace mr::precision {
namespace {

constexpr std::uint32_t kMostIds = 256;  // in the chain, and as bytes
constexpr std::uint64_t kFollowers = 0xC4A1Full << 32, kDraws = 0xD4A3ull << 32;  // streams

// In the format of a shard: a header and two bytes per token.
std::string shard_bytes(std::span<const std::uint8_t> ids) {
    std::string out =
        train::shard_header_bytes({.bytes_per_token = 2, .vocab = kMostIds, .tokens = ids.size()});
    out.reserve(out.size() + 2 * ids.size());
    for (const std::uint8_t id : ids) {
        out += static_cast<char>(id);
        out += '\0';
    }
    return out;
}

train::Shards one_shard(const std::string& bytes, const std::string& name) {
    std::vector<train::Shard> shards;
    shards.push_back(train::Shard::parse(std::as_bytes(std::span(bytes)), name));
    return {std::move(shards), {}};
}

void fill(StudyTokens& out, std::span<const std::uint8_t> train,
          std::span<const std::uint8_t> held_out, const std::string& name) {
    out.train_bytes = shard_bytes(train);
    out.held_out_bytes = shard_bytes(held_out);
    out.train = one_shard(out.train_bytes, name);
    out.held_out = one_shard(out.held_out_bytes, name);
}

void check_vocab(const std::string& path, std::uint32_t of_data, int vocab, const char* remedy) {
    if (of_data <= static_cast<std::uint32_t>(vocab)) return;
    throw Error::input(
        {.file = path,
         .field = "vocabulary",
         .value = fmt::format("{}", of_data),
         .problem = fmt::format("the model has {} tokens, fewer than the data", vocab),
         .remedy = remedy});
}

}  // namespace

StudyTokens made_up_tokens(int vocab, std::uint64_t seed, std::int64_t row, std::int64_t windows,
                           std::int64_t held_out_windows) {
    const std::uint32_t ids = std::bit_floor(std::min(static_cast<std::uint32_t>(vocab), kMostIds));
    std::array<std::array<std::uint8_t, 4>, kMostIds> followers{};
    for (std::uint32_t id = 0; id < ids; ++id) {
        const auto words = philox(seed, id, kFollowers);
        // Odd steps modulo a power of two: four different followers.
        for (std::uint32_t k = 0; k < 4; ++k) {
            followers[id][k] = static_cast<std::uint8_t>((words[0] + k * (words[1] | 1u)) % ids);
        }
    }
    const auto tokens = [&](std::int64_t count) {
        return static_cast<std::size_t>(
            std::min(count, std::max(kMostMadeUp / row, std::int64_t{1})) * row + 1);
    };
    const std::size_t of_train = tokens(windows), of_held_out = tokens(held_out_windows);
    std::vector<std::uint8_t> chain(of_train + of_held_out);
    for (std::size_t i = 1; i < chain.size(); ++i) {
        chain[i] = followers[chain[i - 1]][philox(seed, i, kDraws)[0] % 4];
    }
    StudyTokens out;
    const std::span<const std::uint8_t> all(chain);
    fill(out, all.first(of_train), all.subspan(of_train), "made-up tokens");
    out.about = fmt::format(
        "made-up tokens, {} ids with four followers each: ln 4 = 1.386 is "
        "the least loss",
        ids);
    return out;
}

StudyTokens read_tokens(const std::string& path, int vocab) {
    StudyTokens out;
    if (std::filesystem::is_directory(path)) {
        train::Dataset data = train::Dataset::open(path);
        check_vocab(path, data.vocab, vocab, "pack the data with a smaller tokenizer");
        if (data.val.tokens() == 0) {
            throw Error::input({.file = path,
                                .field = "val",
                                .problem = "there is no validation split to measure the loss on",
                                .remedy = "pack the data with --val"});
        }
        out.train = std::move(data.train);
        out.held_out = std::move(data.val);
        out.about = fmt::format("{}, loss of its validation split", path);
        return out;
    }
    const MappedFile file(path);
    check_vocab(path, kMostIds, vocab, "a file is read byte by byte: use a larger model");
    std::vector<std::uint8_t> bytes(file.bytes().size());
    file.read(0, std::as_writable_bytes(std::span(bytes)));
    const std::span<const std::uint8_t> all(bytes);
    const std::size_t of_train = bytes.size() - bytes.size() / 10;
    fill(out, all.first(of_train), all.subspan(of_train), path);
    out.about = fmt::format("bytes of {}, loss of its last tenth", path);
    return out;
}

}  // namespace mr::precision
