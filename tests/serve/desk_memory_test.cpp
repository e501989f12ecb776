// The desk where memory runs out while it begins a text: any allocation of the engine's thread may
// fail.
#include <cstdlib>
#include <new>

#include "desk_fixture.h"

namespace {

thread_local int allocations_left = -1;  // of this thread, before one fails; -1: none does

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

namespace mr::serve {
namespace {

// gone() is polled once the text has begun.
class NoLonger : public Kept {
  public:
    bool gone() const override {
        allocations_left = -1;
        return Kept::gone();
    }
};

TEST_F(DeskTest, WithoutMemoryATextFailsAndLeavesItsPlace) {
    open({.sequences = 1});
    Brake open_brake;
    open_brake.release();
    int fails = 0;
    for (bool failed = true; failed; ++fails) {
        std::vector<Desk::Work> works{work("The cat", 2, 1)};
        works[0].options.filter = [&] {  // the scheduler takes the text
            allocations_left = fails;
            return open_brake.filter()();
        };
        const auto sink = std::make_shared<NoLonger>();
        desk_->generate("a", std::move(works), sink);
        ASSERT_TRUE(sink->wait());
        failed = sink->failure.has_value();
        EXPECT_EQ(failed ? sink->failure->message : "out of memory", "out of memory");
        const KeptPtr next = ask("a", work("The cat", 2, 1));
        ASSERT_TRUE(next->wait()) << "after allocation " << fails;
        EXPECT_FALSE(next->failure);
    }
    EXPECT_GT(fails, 3);
    desk_->drain();
    ASSERT_TRUE(desk_->wait_drained(test::kHang));
    EXPECT_EQ(metrics_.running, 0);
    EXPECT_EQ(metrics_.cache_free, metrics_.cache_tokens);
}

}  // namespace
}  // namespace mr::serve
