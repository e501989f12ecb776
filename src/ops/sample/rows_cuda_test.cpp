#include "ops/sample/rows_cuda.h"

#include <vector>

#include "core/cuda/testing.h"

namespace mr::cuda {
namespace {

class SampleRowsTest : public GpuTest {};

TEST_F(SampleRowsTest, EveryRowHasItsSeedAndPosition) {
    constexpr int kRows = 300;  // more than two blocks
    SampleRowsPass pass;
    pass.all = {};
    pass.all.temperature = 0.7f;
    pass.all.top_p = 0.9f;
    pass.all.top_k = 50;
    pass.all.active = 1;
    pass.all.seed = ~std::uint64_t{0} - 1;  // the third row's wraps to 0
    pass.all.position = 7;
    std::vector<std::int64_t> seeds(kRows), positions(kRows);
    for (int i = 0; i < kRows; ++i) {
        seeds[static_cast<std::size_t>(i)] = 1000 - i;
        positions[static_cast<std::size_t>(i)] = 3 * i;
    }
    const auto* const device_seeds = upload<std::int64_t>(seeds);
    const auto* const device_positions = upload<std::int64_t>(positions);
    pass.rows = memory_.array<SampleRow>(kRows + 1);
    pass.count = kRows;
    for (const bool given : {false, true}) {
        stream_->fill(pass.rows, 0xff, (kRows + 1) * sizeof(SampleRow));
        pass.seeds = given ? device_seeds : nullptr;
        pass.positions = given ? device_positions : nullptr;
        set_sample_rows(ctx_, pass);
        const std::vector<SampleRow> rows = download(pass.rows, kRows + 1);
        for (std::size_t i = 0; i < kRows; ++i) {
            ASSERT_EQ(rows[i].seed,
                      given ? static_cast<std::uint64_t>(seeds[i]) : pass.all.seed + i);
            ASSERT_EQ(rows[i].position, given ? positions[i] : 7);
            ASSERT_EQ(rows[i].temperature, 0.7f);
            ASSERT_EQ(rows[i].top_k, 50);
            ASSERT_EQ(rows[i].active, 1);
        }
        ASSERT_EQ(rows[kRows].active, -1);  // unchanged
    }
}

}  // namespace
}  // namespace mr::cuda
