// The data for `millrace-lab precision`: the same batches for each way, and a held-out
// text.
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

// Upper bound of random tokens: enough for all steps, up to kMostMadeUp.
inline constexpr std::int64_t kMostMadeUp = std::int64_t{1} << 22;

// Tokens of a Markov chain: each is followed by one of its four followers with equal probability,
// so that a model can learn, down to a loss of ln 4. Only ids below 256, so that little data is
// enough. `row`: tokens per window, `windows`: number of windows, in each part.
StudyTokens made_up_tokens(int vocab, std::uint64_t seed, std::int64_t row, std::int64_t windows,
                           std::int64_t held_out_windows);

// `path`: a folder made by `millrace data pack`, whose validation split is held out; or any file,
// whose bytes are the tokens and whose last tenth is held out. Throws Error (input) if the model's
// vocabulary is smaller than the data's.
StudyTokens read_tokens(const std::string& path, int vocab);

}  // namespace mr::precision
