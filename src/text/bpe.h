// Pair merging, the core of every BPE, and its hash tables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mr::text {

std::uint64_t hash_bytes(std::string_view bytes);

// String to id by open addressing. The strings are not copied: they must outlive the index.
class StringIndex {
  public:
    void reserve(std::size_t count);
    // Returns false and does nothing if the string is already there.
    bool insert(std::string_view key, std::int32_t id);
    std::int32_t find(std::string_view key) const;  // -1: absent

  private:
    struct Slot {
        std::string_view key{};
        std::uint64_t hash = 0;
        std::int32_t id = -1;
    };
    void grow(std::size_t slots);
    std::vector<Slot> slots_;
    std::size_t used_ = 0;
};

// (left id, right id) -> (rank, merged id).
class PairTable {
  public:
    static constexpr std::uint32_t kNoRank = 0xFFFFFFFF;
    struct Found {
        std::uint32_t rank = kNoRank;  // lower ranks merge first
        std::int32_t merged = -1;
    };
    void reserve(std::size_t count);
    // The last value set for a pair wins, as when merges are loaded into a dictionary.
    void set(std::int32_t left, std::int32_t right, Found value);
    Found find(std::int32_t left, std::int32_t right) const;
    bool empty() const { return used_ == 0; }

  private:
    static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
    struct Slot {
        std::uint64_t key = kEmpty;
        Found value{};
    };
    void grow(std::size_t slots);
    std::size_t slot_of(std::uint64_t key) const;
    std::vector<Slot> slots_;
    std::size_t used_ = 0;
};

// Working memory of merge(), kept between words.
struct MergeScratch {
    std::vector<std::uint32_t> next, prev, rank;
    std::vector<std::int32_t> merged;
    std::vector<std::uint64_t> heap;
};

// Merges `symbols` in place until no neighbouring pair is in the table: always the pair of lowest
// rank, the leftmost of equals. O(n log n). Symbols < 0 merge with nothing. At most 2^32 - 2
// symbols.
void merge(const PairTable& pairs, std::vector<std::int32_t>& symbols, MergeScratch& scratch);

}  // namespace mr::text
