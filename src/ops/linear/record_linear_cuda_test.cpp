// Finish::records: every kernel makes the records that the logits of Finish::store give.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "ops/denoise/denoise_cuda.h"
#include "ops/linear/linear_testing.h"

namespace mr::cuda {
namespace {

class RecordLinear : public LinearGpuTest {
  protected:
    void SetUp() override {
        LinearGpuTest::SetUp();
        if (!has_gpu()) return;
        if (!linear_records_takes(ctx_, DType::bf16, 64)) {
            GTEST_SKIP() << "Finish::records needs clusters";
        }
    }
    // Greedy, sampled at two temperatures, scored against a true token, and settled rows.
    static GuessRow row_of(int i, int vocab) {
        ops::SampleParams sampling{.top_k = 0, .top_p = 1, .min_p = 0};
        sampling.temperature = i % 4 == 0 ? 0.0f : i % 4 == 1 ? 0.7f : 1.0f;
        sampling.seed = 1000 + static_cast<std::uint64_t>(i);
        const ops::DenoiseParams how{.remask = i % 3 ? ops::Remask::entropy : ops::Remask::dynamic};
        GuessRow row = guess_row(sampling, how, 7 * i, i % 5, i % 6 == 5 ? i % vocab : -1);
        row.sampling.active = i % 7 != 6;
        return row;
    }
    static ops::TileRecord record_of(const float* logits, int tile, int vocab, int mask,
                                     const GuessRow& row) {
        float x[ops::kDrawTile];
        for (int i = 0; i < ops::kDrawTile; ++i) {
            const int id = tile * ops::kDrawTile + i;
            x[i] = id < vocab && id != mask ? logits[id] : ops::kNoLogit;
        }
        return ops::tile_record(
            x, tile,
            {row.sampling.temperature, row.truth, row.entropy != 0, row.sampling.seed,
             static_cast<std::uint64_t>(row.sampling.position),
             static_cast<std::uint32_t>(row.sampling.step)});
    }
    void expect_records_of_logits(DType type, int n, int k, bool bias, int most) {
        memory_.reset();
        const DeviceArena scratch("scratch", linear_records_scratch_bytes(most, k));
        stream_->fill(scratch.data(), 0xff, scratch.size());
        ctx_.scratch = {static_cast<std::byte*>(scratch.data()), scratch.size()};
        const Matrix m = matrix(type, n, k);
        std::vector<float> xv = normal(static_cast<std::size_t>(most) * k), weight = normal(k, 3),
                           biases = normal(n);
        LinearIn in;
        const Tensor x = upload(DType::f32, {most, k}, xv);
        in.norm = {upload(DType::f32, {k}, weight), {}, ops::NormKind::rms, 1e-5f};
        in.w = m.device;
        if (bias) in.bias = upload(DType::f32, {n}, biases);
        const Tensor logits = poisoned(DType::f32, {most, n});
        in.x = x;
        in.out = logits;
        linear_small(ctx_, in);
        const std::vector<float> all = download(logits);
        std::vector<GuessRow> rows;
        for (int i = 0; i < most; ++i) rows.push_back(row_of(i, n));
        const int mask = n / 2, tiles = static_cast<int>(ops::draw_tiles(n));
        const auto count = static_cast<std::size_t>(most) * static_cast<std::size_t>(tiles);
        auto* const records = memory_.array<ops::TileRecord>(count);
        in.out = {};
        in.finish = Finish::records;
        in.records = {records, upload<GuessRow>(rows), mask};
        std::vector<ops::TileRecord> want(count);
        std::memset(want.data(), 0xff, count * sizeof(ops::TileRecord));
        for (int r = 0; r < most; ++r) {
            const GuessRow& row = rows[static_cast<std::size_t>(r)];
            for (int t = 0; t < tiles && row.sampling.active; ++t) {
                want[static_cast<std::size_t>(r * tiles + t)] =
                    record_of(all.data() + static_cast<std::ptrdiff_t>(r) * n, t, n, mask, row);
            }
        }
        for (const int some :
             {1, 3, 4, 5, 8, 11, 16, 20, 32, 33, 64, 65, 100, 129, 192, 256, 300, 700, 1100}) {
            if (some > most) break;
            stream_->fill(records, 0xff, count * sizeof *records);
            in.x = x.slice_rows(0, some);
            linear_small(ctx_, in);
            const std::vector<ops::TileRecord> got = download(records, count);
            for (std::size_t i = 0; i < count; ++i) {
                ops::TileRecord expected = want[i];
                if (i / static_cast<std::size_t>(tiles) >= static_cast<std::size_t>(some)) {
                    std::memset(&expected, 0xff, sizeof expected);  // nothing must be written there
                }
                ASSERT_EQ(std::memcmp(&got[i], &expected, sizeof expected), 0)
                    << dtype_name(type) << " [" << n << ", " << k << "] rows " << some << ", row "
                    << i / static_cast<std::size_t>(tiles) << ", tile "
                    << i % static_cast<std::size_t>(tiles) << ": best " << got[i].best << " and "
                    << expected.best << ", sum " << got[i].sum << " and " << expected.sum
                    << ", spread " << got[i].spread << " and " << expected.spread << ", weight "
                    << got[i].weight << " and " << expected.weight << ", logit " << got[i].logit
                    << " and " << expected.logit << ", marks " << got[i].marks << " and "
                    << expected.marks;
            }
        }
    }
};

TEST_F(RecordLinear, RecordsAreThoseOfTheLogits) {
    for (const DType type : kSmallTypes) {
        // Less than a tile, one token more than a tile, less than a strip, and many strips per
        // block.
        for (const auto& [n, k] : {std::pair{9, 64}, {17, 96}, {300, 1408}, {13001, 160}}) {
            expect_records_of_logits(type, n, k, n != 300, 300);
            if (HasFatalFailure()) return;
        }
    }
}
// Rows in tiles, and more than fit into a pass.
TEST_F(RecordLinear, RecordsOfManyRowsAreThoseOfTheLogits) {
    for (const DType type : kSmallTypes) {
        expect_records_of_logits(type, 2003, 576, true, 1100);
        if (HasFatalFailure()) return;
    }
}
// As many tiles as a real vocabulary has: more than one pass over the inputs for a block.
TEST_F(RecordLinear, RecordsOfALargeVocabularyAreThoseOfTheLogits) {
    for (const DType type : {DType::bf16, DType::q8_0x8}) {
        expect_records_of_logits(type, 50257, 128, false, 20);
        if (HasFatalFailure()) return;
    }
}

// Active rows in any places, and none at all. Logits of inactive rows may have any value.
TEST_F(RecordLinear, ActiveRowsAloneAreMultiplied) {
    constexpr int kVocab = 2003, kColumns = 576, kMost = 65;
    for (const DType type : kSmallTypes) {
        memory_.reset();
        const DeviceArena scratch("scratch", linear_records_scratch_bytes(kMost, kColumns));
        ctx_.scratch = {static_cast<std::byte*>(scratch.data()), scratch.size()};
        const Matrix m = matrix(type, kVocab, kColumns);
        std::vector<float> xv = normal(std::size_t{kMost} * kColumns), weight = normal(kColumns, 3),
                           biases = normal(kVocab);
        const Tensor x = upload(DType::f32, {kMost, kColumns}, xv);
        LinearIn in;
        in.norm = {upload(DType::f32, {kColumns}, weight), {}, ops::NormKind::rms, 1e-5f};
        in.w = m.device;
        in.bias = upload(DType::f32, {kVocab}, biases);
        in.x = x;
        in.out = poisoned(DType::f32, {kMost, kVocab});
        linear_small(ctx_, in);
        const std::vector<float> want = download(in.out);
        const Tensor logits = in.out;
        auto* const device_asks = memory_.array<GuessRow>(kMost);
        in.finish = Finish::records;
        for (const int rows : {4, 5, 8, 16, 31, 32, 33, 48, 64, 65}) {
            for (const std::uint64_t active :
                 {~0ull, 0ull, 1ull, 1ull << (std::min(rows, 64) - 1), 0x5555555555555555ull,
                  0xfff0ull, 0x8001ull, 0xffffffffull << 16, 0x1ffffffffull << 16}) {
                std::vector<GuessRow> asks;
                for (int i = 0; i < rows; ++i) {
                    asks.push_back(row_of(1, kVocab));
                    asks.back().sampling.active = i < 64 && active >> i & 1;
                }
                // Earlier contents of the scratch must not matter.
                stream_->fill(scratch.data(), 0xff, scratch.size());
                in.x = x.slice_rows(0, rows);
                stream_->fill(logits.data, 0xff, logits.bytes());
                stream_->to_device(device_asks, asks.data(), asks.size() * sizeof(GuessRow),
                                   nullptr);
                in.out = logits.slice_rows(0, rows);
                in.records = {nullptr, device_asks, -1};
                linear_small(ctx_, in);
                const std::vector<float> got = download(in.out);
                for (int i = 0; i < rows; ++i) {
                    if (i == 64 || !(active >> i & 1)) continue;
                    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(i) * kVocab;
                    ASSERT_EQ(std::memcmp(got.data() + at, want.data() + at, kVocab * 4), 0)
                        << dtype_name(type) << " rows " << rows << ", active " << active << ", row "
                        << i;
                }
                if (rows <= 4 || rows > kPackedRows) continue;
                for (int i = 0; i < rows; ++i) {  // settled rows cost no store
                    if (active >> i & 1) continue;
                    const float first = got[static_cast<std::size_t>(i) * kVocab];
                    ASSERT_TRUE(std::isnan(first)) << dtype_name(type) << " rows " << rows;
                }
            }
        }
    }
}

// The ledger counts weights and inputs as read, and records as written.
TEST_F(RecordLinear, TheAccountHasRecordsInsteadOfLogits) {
    constexpr int kRows = 6, kVocab = 1000, kColumns = 64;
    const Matrix m = matrix(DType::bf16, kVocab, kColumns);
    std::vector<float> xv = normal(std::size_t{kRows} * kColumns);
    const Tensor x = upload(DType::bf16, {kRows, kColumns}, xv);
    const std::vector<GuessRow> rows(kRows, row_of(1, kVocab));
    auto* const records = memory_.array<ops::TileRecord>(kRows * 63);
    LinearIn in;
    in.x = x;
    in.w = m.device;
    in.finish = Finish::records;
    in.records = {records, upload<GuessRow>(rows), -1};
    in.kind = OpKind::lm_head;
    const Ledger before = ledger_;
    linear_small(ctx_, in);
    const OpRecord used = ledger_.since(before).op(OpKind::lm_head);
    EXPECT_EQ(used.bytes_written, kRows * 63 * sizeof(ops::TileRecord));
    EXPECT_EQ(used.bytes_read, m.device.bytes() + x.bytes());
}

}  // namespace
}  // namespace mr::cuda
