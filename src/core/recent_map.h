// A map that keeps the most recently used values, for values that can be made again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "core/error.h"

namespace mr {

template <typename Key, typename Value>
class RecentMap {
  public:
    // Holds at most `most` values.
    explicit RecentMap(std::size_t most) : most_(most) {
        MR_CHECK(most > 0, "a map has room for a value");
    }

    // Null if absent. Valid until the next put().
    Value* find(const Key& key) {
        const auto found = values_.find(key);
        if (found == values_.end()) return nullptr;
        found->second.used = ++uses_;
        return &found->second.value;
    }
    // Full: the next put() of a new key drops the least recently used value.
    bool full() const { return values_.size() == most_; }
    Value& put(const Key& key, Value value) {
        if (full() && !values_.contains(key)) drop_oldest();
        return values_.insert_or_assign(key, Kept{std::move(value), ++uses_}).first->second.value;
    }
    // Drops the least recently used value. The map must not be empty.
    void drop_oldest() {
        values_.erase(std::min_element(
            values_.begin(), values_.end(),
            [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
    }
    std::size_t size() const { return values_.size(); }

  private:
    struct Kept {
        Value value;
        std::uint64_t used;
    };
    std::size_t most_;
    std::uint64_t uses_ = 0;
    std::map<Key, Kept> values_;
};

}  // namespace mr
