// The books of the cache where memory runs out while they are written.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <optional>

#include "kv_cases.h"

namespace {

thread_local int allocations_left = -1;  // before one fails; -1: none does

}  // namespace

void* operator new(std::size_t size) {
    if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
    if (void* const memory = std::malloc(size > 0 ? size : 1)) return memory;
    throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
    return std::malloc(size > 0 ? size : 1);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace mr::model {
namespace {

using test::kPage;

TEST(KvMemory, APageThatCannotBeKnownIsUnknown) {
    int failures = 0;
    for (int round = 0; round < 12; ++round) {
        const int fails = round / 2, known = round % 2 ? 2 : 0;  // texts before
        KvCache cache(test::one_layer(), 6, 2, 16 * kPage, DType::f32,
                      reinterpret_cast<std::byte*>(64));
        const auto serve = [&](int text, int allocations) {
            std::optional<KvCache::PageCopy> copy;
            const std::vector<std::int32_t> tokens(kPage + 1, text);
            const SeqId seq = cache.open();
            const std::int64_t found = cache.adopt(seq, tokens, Form::prompt, kPage, kPage, copy);
            cache.reserve(seq, kPage + 1);
            cache.advance(seq, kPage + 1 - found);
            allocations_left = allocations;
            bool whole = true;
            try {
                cache.publish(seq, tokens, Form::prompt);
            } catch (const std::bad_alloc&) {
                whole = false;
            }
            allocations_left = -1;
            cache.close(seq);
            return whole;
        };
        for (int text = 1; text <= known; ++text) EXPECT_TRUE(serve(text, -1));
        failures += !serve(3, fails);
        cache.check_books();
        for (int text = 4; text < 30; ++text) EXPECT_TRUE(serve(text, -1));
        cache.check_books();
    }
    EXPECT_GE(failures, 5);
}

}  // namespace
}  // namespace mr::model
