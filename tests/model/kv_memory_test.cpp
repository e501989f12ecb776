// The books of the cache where memory runs out while they are written.
#include <gtest/gtest.h>

#include <new>
#include <optional>

#include "failing_new.h"
#include "kv_cases.h"

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
            test::allocations_left = allocations;
            bool whole = true;
            try {
                cache.publish(seq, tokens, Form::prompt);
            } catch (const std::bad_alloc&) {
                whole = false;
            }
            test::allocations_left = -1;
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
