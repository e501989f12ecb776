#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

namespace mr::text {
namespace {

std::uint64_t mix(std::uint64_t x) {  // Stafford's variant 13 of the MurmurHash3 finalizer
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
}

constexpr std::size_t kShort = 24;  // below this a scan beats the heap

// The same result as the heap, found by scanning for the lowest rank each time.
void merge_short(const PairTable& pairs, std::vector<std::int32_t>& symbols) {
    PairTable::Found found[kShort];
    std::size_t n = symbols.size();
    for (std::size_t i = 0; i + 1 < n; ++i) found[i] = pairs.find(symbols[i], symbols[i + 1]);
    while (n > 1) {
        std::size_t best = 0;
        for (std::size_t i = 1; i + 1 < n; ++i) {
            if (found[i].rank < found[best].rank) best = i;
        }
        if (found[best].rank == PairTable::kNoRank) break;
        symbols[best] = found[best].merged;
        for (std::size_t i = best + 1; i + 1 < n; ++i) {
            symbols[i] = symbols[i + 1];
            found[i] = found[i + 1];
        }
        --n;
        if (best + 1 < n) found[best] = pairs.find(symbols[best], symbols[best + 1]);
        if (best > 0) found[best - 1] = pairs.find(symbols[best - 1], symbols[best]);
    }
    symbols.resize(n);
}

}  // namespace

std::uint64_t hash_bytes(std::string_view bytes) {
    std::uint64_t h = bytes.size() * 0x9E3779B97F4A7C15u;
    while (bytes.size() >= 8) {
        std::uint64_t word;
        std::memcpy(&word, bytes.data(), 8);
        h = mix(h ^ word);
        bytes.remove_prefix(8);
    }
    std::uint64_t word = 0;
    if (!bytes.empty()) std::memcpy(&word, bytes.data(), bytes.size());
    return mix(h ^ word);
}

void StringIndex::reserve(std::size_t count) { grow(std::bit_ceil(count * 2 + 16)); }

void StringIndex::grow(std::size_t slots) {
    if (slots <= slots_.size()) return;
    std::vector<Slot> old(slots);
    old.swap(slots_);
    for (const Slot& s : old) {
        if (s.id < 0) continue;
        std::size_t i = s.hash & (slots_.size() - 1);
        while (slots_[i].id >= 0) i = (i + 1) & (slots_.size() - 1);
        slots_[i] = s;
    }
}

bool StringIndex::insert(std::string_view key, std::int32_t id) {
    if ((used_ + 1) * 2 > slots_.size()) grow(std::max<std::size_t>(64, slots_.size() * 2));
    const std::uint64_t hash = hash_bytes(key);
    std::size_t i = hash & (slots_.size() - 1);
    for (; slots_[i].id >= 0; i = (i + 1) & (slots_.size() - 1)) {
        if (slots_[i].hash == hash && slots_[i].key == key) return false;
    }
    slots_[i] = {key, hash, id};
    ++used_;
    return true;
}

std::int32_t StringIndex::find(std::string_view key) const {
    if (slots_.empty()) return -1;
    const std::uint64_t hash = hash_bytes(key);
    std::size_t i = hash & (slots_.size() - 1);
    for (; slots_[i].id >= 0; i = (i + 1) & (slots_.size() - 1)) {
        if (slots_[i].hash == hash && slots_[i].key == key) return slots_[i].id;
    }
    return -1;
}

void PairTable::reserve(std::size_t count) { grow(std::bit_ceil(count * 2 + 16)); }

std::size_t PairTable::slot_of(std::uint64_t key) const {
    std::size_t i = mix(key) & (slots_.size() - 1);
    while (slots_[i].key != key && slots_[i].key != kEmpty) i = (i + 1) & (slots_.size() - 1);
    return i;
}

void PairTable::grow(std::size_t slots) {
    if (slots <= slots_.size()) return;
    std::vector<Slot> old(slots);
    old.swap(slots_);
    for (const Slot& s : old) {
        if (s.key != kEmpty) slots_[slot_of(s.key)] = s;
    }
}

void PairTable::set(std::int32_t left, std::int32_t right, Found value) {
    if ((used_ + 1) * 2 > slots_.size()) grow(std::max<std::size_t>(64, slots_.size() * 2));
    Slot& slot = slots_[slot_of(pair_key(left, right))];
    if (slot.key == kEmpty) ++used_;
    slot = {pair_key(left, right), value};
}

PairTable::Found PairTable::find(std::int32_t left, std::int32_t right) const {
    if (slots_.empty() || left < 0 || right < 0) return {};
    return slots_[slot_of(pair_key(left, right))].value;
}

void merge(const PairTable& pairs, std::vector<std::int32_t>& symbols, MergeScratch& scratch) {
    if (symbols.size() <= kShort) {
        merge_short(pairs, symbols);
        return;
    }
    // A linked list over the positions; a heap of (rank, position). An entry is stale when the pair
    // at its position has since become another one: its rank no longer matches.
    constexpr std::uint32_t kEnd = 0xFFFFFFFF;
    const auto n = static_cast<std::uint32_t>(symbols.size());
    auto& next = scratch.next;
    auto& prev = scratch.prev;
    auto& rank = scratch.rank;
    auto& merged = scratch.merged;
    auto& heap = scratch.heap;
    next.resize(n);
    prev.resize(n);
    rank.resize(n);
    merged.resize(n);
    heap.clear();
    const auto look = [&](std::uint32_t i) {
        const PairTable::Found found =
            next[i] == kEnd ? PairTable::Found{} : pairs.find(symbols[i], symbols[next[i]]);
        rank[i] = found.rank;
        merged[i] = found.merged;
        return found.rank != PairTable::kNoRank;
    };
    const auto entry = [&](std::uint32_t i) {
        return static_cast<std::uint64_t>(rank[i]) << 32 | i;
    };
    for (std::uint32_t i = 0; i < n; ++i) {
        prev[i] = i == 0 ? kEnd : i - 1;
        next[i] = i + 1 == n ? kEnd : i + 1;
    }
    for (std::uint32_t i = 0; i < n; ++i) {
        if (look(i)) heap.push_back(entry(i));
    }
    std::make_heap(heap.begin(), heap.end(), std::greater<>());
    const auto push = [&](std::uint32_t i) {
        heap.push_back(entry(i));
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
    };
    while (!heap.empty()) {
        const std::uint64_t top = heap.front();
        std::pop_heap(heap.begin(), heap.end(), std::greater<>());
        heap.pop_back();
        const auto i = static_cast<std::uint32_t>(top);
        if (rank[i] != top >> 32) continue;
        const std::uint32_t right = next[i];
        symbols[i] = merged[i];
        rank[right] = PairTable::kNoRank;  // its entries in the heap are stale now
        next[i] = next[right];
        if (next[i] != kEnd) prev[next[i]] = i;
        if (look(i)) push(i);
        if (prev[i] != kEnd && look(prev[i])) push(prev[i]);
    }
    std::uint32_t out = 0;
    for (std::uint32_t i = 0; i != kEnd; i = next[i]) symbols[out++] = symbols[i];
    symbols.resize(out);
}

}  // namespace mr::text
