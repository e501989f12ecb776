#include "ops/check/check_cuda.h"

#include <limits>
#include <optional>

#include "core/cuda/testing.h"

namespace mr::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class CheckTest : public GpuTest {
  protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (!stream_) return;
        found_ = memory_.array<std::uint64_t>(1);
        clear();
    }
    void clear() { stream_->fill(found_, 0xff, sizeof *found_); }
    std::optional<ops::NotFinite> found() {
        return ops::NotFinite::unpacked(download(found_, 1)[0]);
    }

    std::uint64_t* found_ = nullptr;
};

TEST_F(CheckTest, FindsTheFirstRowThatIsNotFinite) {
    for (const std::int64_t cols : {1, 2, 31, 255, 256, 257, 1000, 4096, 151936}) {
        const std::int64_t rows = cols > 100000 ? 3 : 300;
        std::vector<float> x = normal(static_cast<std::size_t>(rows * cols));
        x[0] = std::numeric_limits<float>::max();
        x[static_cast<std::size_t>(cols)] = std::numeric_limits<float>::denorm_min();
        Tensor on_device = memory_.tensor(DType::f32, {rows, cols});
        const auto run = [&](const std::vector<float>& values) {
            stream_->to_device(on_device.data, values.data(), 4 * values.size(), nullptr);
            clear();
            check_finite(ctx_, found_, on_device, 7, 100);
            return found();
        };
        EXPECT_FALSE(run(x)) << cols;
        for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
            for (const std::int64_t at :
                 {std::int64_t{0}, cols - 1, 2 * cols, (rows - 1) * cols, rows * cols - 1}) {
                std::vector<float> y = x;
                y[static_cast<std::size_t>(at)] = bad;
                EXPECT_EQ(run(y), (ops::NotFinite{7, 100 + at / cols, bad != bad}))
                    << cols << " " << at;
                // Later rows change nothing; a NaN in the same row turns it into a NaN row.
                const bool last = at / cols == rows - 1;
                y.back() = kNan;
                EXPECT_EQ(run(y), (ops::NotFinite{7, 100 + at / cols, last || bad != bad}));
            }
        }
        memory_.reset();
        found_ = memory_.array<std::uint64_t>(1);
    }
}

TEST_F(CheckTest, TheEarliestStageStaysWhateverComesAfter) {
    std::vector<float> good = normal(4 * 96), bad = good;
    bad[2 * 96 + 5] = kInfinity;
    const Tensor healthy = upload(DType::f32, {4, 96}, good);
    const Tensor damaged = upload(DType::f32, {4, 96}, bad);
    check_finite(ctx_, found_, healthy, 1);
    check_finite(ctx_, found_, damaged, 9, 0);  // the first part of a batch
    check_finite(ctx_, found_, damaged, 10, 0);
    EXPECT_EQ(found(), (ops::NotFinite{9, 2, false}));
    check_finite(ctx_, found_, damaged, 4, 50);  // the second part fails earlier
    check_finite(ctx_, found_, damaged, 9, 50);
    EXPECT_EQ(found(), (ops::NotFinite{4, 52, false}));
    check_finite(ctx_, found_, Tensor(damaged.data, DType::f32, {0, 96}), 0);  // no rows
    EXPECT_EQ(found(), (ops::NotFinite{4, 52, false}));
}

}  // namespace
}  // namespace mr::cuda
