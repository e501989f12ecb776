// The desk where memory runs out while it begins a text: any allocation of the engine's thread may
// fail.
#include <new>

#include "desk_fixture.h"
#include "failing_new.h"

namespace mr::serve {
namespace {

// gone() is polled once the text has begun.
class NoLonger : public Kept {
  public:
    bool gone() const override {
        test::allocations_left = -1;
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
            test::allocations_left = fails;
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
