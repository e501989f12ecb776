#include "train/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace mr::train {
namespace {

// Little-endian on every machine; compilers make it one load if they can.
template <typename T>
T load(const std::byte* from) {
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
        value = static_cast<T>(value | static_cast<T>(std::to_integer<T>(from[i]) << (8 * i)));
    }
    return value;
}

template <typename T>
void append(std::string& to, T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) to += static_cast<char>(value >> (8 * i));
}

Error fail(const std::string& file, std::string field, std::string value, std::string problem,
           std::string remedy = "pack the data again") {
    return Error::input({.file = file,
                         .field = std::move(field),
                         .value = std::move(value),
                         .problem = std::move(problem),
                         .remedy = std::move(remedy)});
}

ShardHeader parse_header(std::span<const std::byte> bytes, const std::string& name) {
    if (bytes.size() < kShardHeaderBytes) {
        throw fail(
            name, "size", fmt::format("{}", bytes.size()),
            fmt::format("is less than the {} bytes of a header: truncated, or no token shard",
                        kShardHeaderBytes));
    }
    const std::byte* at = bytes.data();
    if (std::memcmp(at, kShardMagic.data(), kShardMagic.size()) != 0) {
        throw fail(name, "magic", "", "is not that of a token shard",
                   "give a folder that 'millrace data pack' wrote");
    }
    if (const auto version = load<std::uint32_t>(at + 8); version != kShardVersion) {
        throw fail(name, "version", fmt::format("{}", version),
                   fmt::format("is not {}, the one this program reads", kShardVersion));
    }
    ShardHeader header;
    header.bytes_per_token = load<std::uint32_t>(at + 12);
    header.tokens = load<std::uint64_t>(at + 16);
    header.vocab = load<std::uint32_t>(at + 24);
    header.tokenizer_hash = load<std::uint64_t>(at + 32);
    header.checksum = load<std::uint64_t>(at + 40);
    if (header.bytes_per_token != 2 && header.bytes_per_token != 4) {
        throw fail(name, "bytes per token", fmt::format("{}", header.bytes_per_token),
                   "is neither 2 nor 4");
    }
    if (load<std::uint32_t>(at + 28) != 0 || load<std::uint64_t>(at + 48) != 0 ||
        load<std::uint64_t>(at + 56) != 0) {
        throw fail(name, "header", "", "has non-zero reserved bytes");
    }
    const std::uint32_t most = header.bytes_per_token == 2 ? 1u << 16 : 1u << 31;
    if (header.vocab == 0 || header.vocab > most) {
        throw fail(name, "vocab", fmt::format("{}", header.vocab),
                   fmt::format("is not from 1 to {}", most));
    }
    // Divided, not multiplied: a hostile count must not wrap.
    const std::uint64_t room = bytes.size() - kShardHeaderBytes;
    if (room % header.bytes_per_token != 0 || header.tokens != room / header.bytes_per_token) {
        throw fail(name, "tokens", fmt::format("{}", header.tokens),
                   fmt::format("of {} bytes each do not fill the {} bytes after the header: the "
                               "file is truncated or damaged",
                               header.bytes_per_token, room));
    }
    return header;
}

// Whether every id is below `vocab`.
template <typename T>
bool widen(const std::byte* from, std::span<std::int32_t> out, std::uint32_t vocab) {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
        const std::uint32_t id = load<T>(from + i * sizeof(T));
        largest = std::max(largest, id);
        out[i] = static_cast<std::int32_t>(id);
    }
    return largest < vocab;
}

}  // namespace

std::string shard_header_bytes(const ShardHeader& header) {
    std::string out(kShardMagic);
    append<std::uint32_t>(out, kShardVersion);
    append<std::uint32_t>(out, header.bytes_per_token);
    append<std::uint64_t>(out, header.tokens);
    append<std::uint32_t>(out, header.vocab);
    append<std::uint32_t>(out, 0);
    append<std::uint64_t>(out, header.tokenizer_hash);
    append<std::uint64_t>(out, header.checksum);
    append<std::uint64_t>(out, 0);
    append<std::uint64_t>(out, 0);
    return out;
}

Shard Shard::open(const std::string& path) {
    MappedFile file(path);
    Shard shard = parse(file.bytes(), path);
    shard.file_ = std::move(file);  // the map does not move
    return shard;
}

Shard Shard::parse(std::span<const std::byte> bytes, std::string name) {
    Shard shard;
    shard.header_ = parse_header(bytes, name);
    shard.ids_ = bytes.subspan(kShardHeaderBytes);
    shard.name_ = std::move(name);
    return shard;
}

void Shard::copy(std::uint64_t at, std::span<std::byte> out) const {
    if (file_.fd() >= 0) {
        file_.read(kShardHeaderBytes + at, out);
    } else {
        std::memcpy(out.data(), ids_.data() + at, out.size());
    }
}

void Shard::read(std::uint64_t first, std::span<std::int32_t> out) const {
    MR_CHECK(first <= tokens() && out.size() <= tokens() - first, "the ids are inside the shard");
    const std::uint64_t width = header_.bytes_per_token;
    std::byte piece[16384];  // on the stack: most sequences fit
    bool good = true;
    for (std::size_t done = 0; done < out.size();) {
        const std::span part = out.subspan(done, std::min(out.size() - done, sizeof piece / width));
        copy((first + done) * width, std::span(piece).first(part.size() * width));
        good &= width == 2 ? widen<std::uint16_t>(piece, part, header_.vocab)
                           : widen<std::uint32_t>(piece, part, header_.vocab);
        done += part.size();
    }
    if (good) return;
    const auto bad = std::find_if(out.begin(), out.end(), [&](std::int32_t id) {
        return static_cast<std::uint32_t>(id) >= header_.vocab;
    });
    throw fail(name_,
               fmt::format("token {}", first + static_cast<std::uint64_t>(bad - out.begin())),
               fmt::format("{}", static_cast<std::uint32_t>(*bad)),
               fmt::format("is not below the vocabulary of {}", header_.vocab));
}

void Shard::verify(const std::function<bool(std::uint64_t)>& more) const {
    constexpr std::size_t kPiece = 1u << 20;
    std::vector<std::byte> buffer(std::min(kPiece, ids_.size()));
    std::uint64_t found = kFnvStart;
    for (std::size_t done = 0; done < ids_.size();) {
        const auto piece = std::span(buffer).first(std::min(buffer.size(), ids_.size() - done));
        copy(done, piece);
        found = fnv1a(piece, found);
        done += piece.size();
        if (more && !more(piece.size())) return;
    }
    if (found == header_.checksum) return;
    throw fail(name_, "checksum", fmt::format("{:016x}", header_.checksum),
               fmt::format("the ids have {:016x}: the file is damaged", found));
}

Shards::Shards(std::vector<Shard> shards, SplitStats stats)
    : shards_(std::move(shards)), stats_(stats) {
    starts_.push_back(0);
    for (const Shard& shard : shards_) starts_.push_back(starts_.back() + shard.tokens());
}

void Shards::read(std::uint64_t first, std::span<std::int32_t> out) const {
    MR_CHECK(first <= tokens() && out.size() <= tokens() - first, "the ids are inside the split");
    if (out.empty()) return;
    // The last shard that starts at or before `first`; empty ones before it do not matter.
    auto i = static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), first) -
                                      starts_.begin() - 1);
    for (; !out.empty(); ++i) {
        const std::uint64_t at = first - starts_[i];
        const auto count =
            static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), shards_[i].tokens() - at));
        shards_[i].read(at, out.first(count));
        out = out.subspan(count);
        first += count;
    }
}

}  // namespace mr::train
