// The unfused version in the benchmarks is correct attention: compared with the f64 reference.
#include "lab/attention/flash_unfused.h"
#include "ops/attention/flash/flash_testing.h"

namespace mr::cuda {
namespace {

using ops::AttentionMask;
using ops::reference::Problem;

class FlashUnfusedTest : public FlashGpuTest {
  protected:
    // |got - want| / |want|, of all elements together.
    static double distance(const std::vector<float>& got, const std::vector<double>& want) {
        double off = 0, all = 0;
        for (std::size_t i = 0; i < want.size(); ++i) {
            off += (got[i] - want[i]) * (got[i] - want[i]);
            all += want[i] * want[i];
        }
        return std::sqrt(off / all);
    }
};

TEST_F(FlashUnfusedTest, IsTheReference) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        for (const auto& [tokens, dim] :
             {std::pair{1, 16}, {40, 16}, {128, 64}, {129, 32}, {300, 128}}) {
            memory_.reset();
            const Problem p = ops::reference::random_problem(
                1, 1, dim, {tokens}, {tokens}, AttentionMask{}, 5, 1, rounding(dtype));
            const auto put = [&](const std::vector<double>& x) {
                std::vector<float> values(x.begin(), x.end());
                return upload(dtype, {tokens, dim}, values);
            };
            const auto place = [&] { return poisoned(dtype, {tokens, dim}); };
            const UnfusedTensors t{put(p.q),    put(p.k), put(p.v), place(),
                                   put(p.dout), place(),  place(),  place()};
            const std::size_t bytes = unfused_bytes(tokens, dim, dtype, true);
            void* memory = memory_.alloc(bytes);
            stream_->fill(memory, 0xff, bytes);
            const std::size_t scratch = unfused_scratch_bytes(tokens, dim, dtype);
            ctx_.scratch = {memory_.array<std::byte>(scratch), scratch};
            const auto scale = static_cast<float>(p.scale);
            unfused_forward(ctx_, t, memory, scale);
            unfused_backward(ctx_, t, memory, scale);
            const ops::reference::Result want = ops::reference::forward_backward(p);
            // Scores, weights, dP and dS are rounded to the type. Scores here are below 6 in size:
            // a weight is then off by at most 6 + 1 roundings, dS by as many for P, P dP and D
            // each, and a sum of products with independent errors is no further off than one of
            // them. f32 sums over 300 keys and 128 numbers are added.
            const double tolerance = 24 * epsilon(dtype) + 512 * 0x1p-24;
            const std::string what = std::string(dtype_name(dtype)) + ", " +
                                     std::to_string(tokens) + " x " + std::to_string(dim);
            EXPECT_LT(distance(download(t.out), want.out), tolerance) << what;
            EXPECT_LT(distance(download(t.dv), want.dv), tolerance) << what;
            if (tokens == 1) continue;  // only one weight, 1, whose gradient is zero
            EXPECT_LT(distance(download(t.dq), want.dq), tolerance) << what;
            EXPECT_LT(distance(download(t.dk), want.dk), tolerance) << what;
        }
    }
}

}  // namespace
}  // namespace mr::cuda
