// A map of the values that were used last: what can be made again need not be kept for good.
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
    // Of at most `most` values.
    explicit RecentMap(std::size_t most) : most_(most) {
        MR_CHECK(most > 0, "a map has room for a value");
    }

    // Null where there is none. Valid until a put().
    Value* find(const Key& key) {
        const auto found = values_.find(key);
        if (found == values_.end()) return nullptr;
        found->second.used = ++uses_;
        return &found->second.value;
    }
    // The next put() of a new key drops the value that was unused for longest.
    bool full() const { return values_.size() == most_; }
    Value& put(const Key& key, Value value) {
        if (full() && !values_.contains(key)) drop_oldest();
        return values_.insert_or_assign(key, Kept{std::move(value), ++uses_}).first->second.value;
    }
    // The value that was unused for longest; there is one.
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
