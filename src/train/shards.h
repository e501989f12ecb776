// Packed token data, written by `millrace data pack` and read by training.
//
// A data folder holds data.json (the index), tokenizer.json, and the shards of its two splits,
// train-00000.bin ... and val-00000.bin ... A split is one long sequence of token ids: the end
// token, then every document followed by the end token. A shard is a header and a part of that
// sequence:
//   byte  0  char[8]  "MRTOKENS"
//         8  u32      version, 1
//        12  u32      bytes per token, 2 or 4
//        16  u64      tokens
//        24  u32      vocabulary: every id is below it
//        28  u32      0
//        32  u64      hash of the tokenizer (tokenizer_hash)
//        40  u64      checksum of the id bytes (fnv1a)
//        48  u64[2]   0
//        64           the ids
// All little-endian, unsigned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/fnv.h"
#include "core/mapped_file.h"
#include "core/progress.h"
#include "core/thread_pool.h"

namespace mr::text {
class Tokenizer;
}

namespace mr::train {

inline constexpr std::string_view kShardMagic = "MRTOKENS";
inline constexpr std::uint32_t kShardVersion = 1;
inline constexpr std::size_t kShardHeaderBytes = 64;
inline constexpr const char* kDataIndexName = "data.json";
inline constexpr const char* kDataFormat = "millrace tokens";  // data.json's "format"
inline constexpr const char* kDataTokenizerName = "tokenizer.json";

// Hash of the meaning of ids: the tokens in order, the merges, the way words are cut. Equal for one
// tokenizer in different files.
std::uint64_t tokenizer_hash(const text::Tokenizer& tokenizer);

struct ShardHeader {
    std::uint32_t bytes_per_token = 2;
    std::uint32_t vocab = 0;
    std::uint64_t tokens = 0;
    std::uint64_t tokenizer_hash = 0;
    std::uint64_t checksum = 0;
};
// kShardHeaderBytes bytes.
std::string shard_header_bytes(const ShardHeader& header);

// One shard. Trusts nothing: the header is checked against the file size when it is opened, ids
// against the vocabulary when they are read. Ids of a file are read with MappedFile::read(), so
// that a file truncated during a run is an Error, and the run can save its last step. Thread-safe
// for reading.
class Shard {
  public:
    static Shard open(const std::string& path);
    // `bytes` must outlive the shard; `name` is for errors.
    static Shard parse(std::span<const std::byte> bytes, std::string name);

    const ShardHeader& header() const { return header_; }
    std::uint64_t tokens() const { return header_.tokens; }
    const std::string& name() const { return name_; }
    // Ids [first, first + out.size()). Throws Error if one is not below the vocabulary, or can no
    // longer be read.
    void read(std::uint64_t first, std::span<std::int32_t> out) const;
    // Reads all of it: throws Error if the checksum is not the header's. `more(bytes)` is called
    // for every piece that was read; false: stop.
    void verify(const std::function<bool(std::uint64_t bytes)>& more = {}) const;

  private:
    // Copies bytes of ids, starting at byte `at`.
    void copy(std::uint64_t at, std::span<std::byte> out) const;

    std::string name_;
    MappedFile file_;  // or none
    std::span<const std::byte> ids_;
    ShardHeader header_;
};

// The source of a split.
struct SplitStats {
    std::uint64_t documents = 0;
    std::uint64_t bytes = 0;   // of the documents' text, without separators: for bits per byte
    std::uint64_t tokens = 0;  // end tokens included
};

// The shards of one split as one sequence of ids.
class Shards {
  public:
    Shards() = default;
    Shards(std::vector<Shard> shards, SplitStats stats);

    std::uint64_t tokens() const { return starts_.empty() ? 0 : starts_.back(); }
    const SplitStats& stats() const { return stats_; }
    const std::vector<Shard>& shards() const { return shards_; }
    // Reads across the ends of shards.
    void read(std::uint64_t first, std::span<std::int32_t> out) const;

  private:
    std::vector<Shard> shards_;
    std::vector<std::uint64_t> starts_;  // [shards + 1]
    SplitStats stats_;
};

// A data folder. Throws Error (input) naming what is wrong: no index, a shard that is missing,
// truncated or of another tokenizer, counts that differ from the index. Ids are checked by
// verify().
struct Dataset {
    std::string folder;
    std::string tokenizer_path;  // folder/tokenizer.json
    std::uint32_t vocab = 0;
    std::int32_t end_token = 0;
    std::uint64_t tokenizer_hash = 0;
    std::uint64_t hash = 0;  // of all data: equal for the same ids in the same order
    Shards train;
    Shards val;  // may have no tokens

    static Dataset open(const std::string& folder);
    // Checks all ids of both splits against the checksums: reads everything, one shard per thread.
    // `progress` is called only on this thread. Throws Error (input) naming the shard.
    void verify(ThreadPool& pool, const Progress& progress = {}) const;
    // The folder's own tokenizer. Throws Error (input) if the data was packed with another one.
    std::shared_ptr<const text::Tokenizer> open_tokenizer() const;
    // Throws Error if the data was packed with another tokenizer than `tokenizer`.
    void check_tokenizer(const text::Tokenizer& tokenizer, const std::string& name) const;
};

}  // namespace mr::train
