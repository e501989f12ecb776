// The paged KV cache: one pool of pages for all sequences, allocated once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/arena.h"
#include "model/spec.h"
#include "ops/attention/paged/attention.h"

namespace mr::model {

using SeqId = std::int32_t;

class KvCache {
  public:
    static constexpr int kPageTokens = ops::kPageTokens;

    // Room for `tokens` positions in all; at most `sequences` at a time. The pages lie in memory of
    // its own, or in the bytes() at `memory`, which may be a device's: it never looks into them.
    KvCache(const ModelSpec& spec, std::int64_t tokens, int sequences, DType dtype,
            std::byte* memory = nullptr);

    static std::uint64_t bytes(const ModelSpec& spec, std::int64_t tokens, int sequences,
                               DType dtype);

    SeqId open();          // a new, empty sequence
    void close(SeqId id);  // gives its pages back
    // Makes room for positions [0, length). Throws Error (device) when no page is free.
    void reserve(SeqId id, std::int64_t length);
    // Forgets positions from `length` on.
    void truncate(SeqId id, std::int64_t length);

    std::int64_t length(SeqId id) const;  // positions written so far
    void advance(SeqId id, std::int64_t count);
    std::span<const std::int32_t> pages(SeqId id) const;
    ops::PagedKv layer(int index) const;
    std::int64_t free_tokens() const;
    DType dtype() const { return dtype_; }

  private:
    struct Sequence {
        bool open = false;
        std::int64_t length = 0;
        std::vector<std::int32_t> pages;
    };
    Sequence& at(SeqId id);
    const Sequence& at(SeqId id) const;

    DType dtype_;
    Arena arena_;
    std::vector<ops::PagedKv> layers_;
    std::vector<Sequence> sequences_;
    std::vector<std::int32_t> free_pages_;
};

}  // namespace mr::model
