#include "ops/check/check.h"

#include <limits>

#include "ops/simd/testing.h"

namespace mr::ops {
namespace {

using namespace testing;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Check, FindsTheFirstRowThatIsNotFinite) {
    Bench bench(2);
    for (const std::int64_t cols : {1, 7, 64, 1001}) {
        Floats x = Floats::normal({5, cols}, 3);
        x[0] = std::numeric_limits<float>::max();
        x[cols] = -std::numeric_limits<float>::max();
        x[2 * cols] = std::numeric_limits<float>::denorm_min();
        x[3 * cols] = -0.0f;
        EXPECT_FALSE(find_not_finite(bench, x, 3));
        for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
            for (const std::int64_t at : {std::int64_t{0}, cols - 1, 2 * cols, 5 * cols - 1}) {
                Floats y = x;
                y[at] = bad;
                EXPECT_EQ(find_not_finite(bench, y, 3), (NotFinite{3, at / cols, bad != bad}))
                    << cols << " " << at;
                y[5 * cols - 1] = kNan;  // a later row changes nothing; a NaN in the same row does
                EXPECT_EQ(find_not_finite(bench, y, 3),
                          (NotFinite{3, at / cols, bad != bad || at / cols == 4}));
            }
        }
    }
}

TEST(Check, PackedPlacesAreInTheOrderOfThePass) {
    const NotFinite places[] = {{0, 0, false},
                                {0, 0, true},
                                {0, 1, false},
                                {0, 0x7fffffff, true},
                                {1, 0, false},
                                {200, 17, true},
                                {0x7fffffff, 0x7fffffff, false}};
    std::uint64_t before = 0;
    for (const NotFinite& place : places) {
        EXPECT_EQ(NotFinite::unpacked(place.packed()), place);
        EXPECT_TRUE(place.packed() > before || place == places[0]);
        EXPECT_LT(place.packed(), NotFinite::kNone);
        before = place.packed();
    }
    EXPECT_FALSE(NotFinite::unpacked(NotFinite::kNone));
}

}  // namespace
}  // namespace mr::ops
