// What the ways of `bench precision` are trained on: the same batches for each, and a text that
// none of them sees.
#pragma once

#include <cstdint>
#include <string>

#include "train/shards.h"

namespace mr::precision {

struct StudyTokens {
    StudyTokens() = default;
    StudyTokens(StudyTokens&&) = default;  // shards point into the bytes
    // One shard in memory each, or those of a data folder.
    std::string train_bytes, held_out_bytes;
    train::Shards train, held_out;
    std::string about;  // in words
};

// How many made-up tokens there are: enough for all steps, up to kMostMadeUp.
inline constexpr std::int64_t kMostMadeUp = std::int64_t{1} << 22;

// Tokens of a chain: each is followed by one of four of its own, equally often, so that there is
// something to learn, down to a loss of ln 4. Ids below 256 alone, so that little data is enough.
// `row`: tokens of a window, `windows`: how many there are to be, of either part.
StudyTokens made_up_tokens(int vocab, std::uint64_t seed, std::int64_t row, std::int64_t windows,
                           std::int64_t held_out_windows);

// `path`: a folder of `millrace data pack`, whose validation split is held out; or any file, whose
// bytes are the tokens and whose last tenth is held out. Throws Error (input) where the model's
// vocabulary is smaller than the data's.
StudyTokens read_tokens(const std::string& path, int vocab);

}  // namespace mr::precision
