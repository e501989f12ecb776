// A hash of the bytes of a flat state, 8 at a time: detects corruption on disk, and ranks whose
// files differ.
#pragma once

#include <cstdint>
#include <cstring>

namespace mr::model {

class StateHash {
  public:
    // Adds the next elements; pieces may have any length.
    void add(const float* values, std::int64_t count) {
        std::int64_t i = 0;
        if (odd_ && count > 0) {
            const float pair[] = {last_, values[i++]};
            add_word(pair);
            odd_ = false;
        }
        for (; i + 1 < count; i += 2) add_word(values + i);
        if (i == count) return;
        last_ = values[i];
        odd_ = true;
    }
    // A state has an even number of elements (ParamLayout).
    std::uint64_t value() const { return hash_; }

  private:
    void add_word(const float* pair) {
        std::uint64_t word = 0;
        std::memcpy(&word, pair, sizeof word);
        hash_ = (hash_ ^ word) * 0x9E3779B97F4A7C15u;
        hash_ ^= hash_ >> 32;
    }

    std::uint64_t hash_ = 0xCBF29CE484222325u;
    float last_ = 0;
    bool odd_ = false;
};

}  // namespace mr::model
