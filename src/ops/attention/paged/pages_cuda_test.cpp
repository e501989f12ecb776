// The pages that attention over a cache reads, and every row of its results against f64.
#include "ops/attention/mask_testing.h"
#include "ops/attention/paged/attention_testing.h"

namespace mr::cuda::paged {
namespace {

// All rows of all items: rows that share a tile with the first of a sequence, windows that begin
// and end in the last, broken page, one row over many keys.
TEST_F(AttentionGpu, EveryRowMatchesF64) {
    std::vector<AttentionMask> masks{kNarrowWindow, kItself};
    masks.insert(masks.end(), std::begin(kMasks), std::end(kMasks));
    const std::vector<int> lengths{65, 127, 180, 1000, 33, 1};
    const std::vector<Item> items{{0, 65, 65},  {1, 127, 127}, {2, 180, 129},
                                  {3, 1000, 1}, {4, 33, 33},   {5, 1, 1}};
    int turn = 0;
    for (const int dim : kDims) {
        for (const auto& types : kTypes) {
            const int group = 1 + turn++ % 3;
            const Shapes s{group, 1, dim, types.q, types.cache};
            memory_.reset();
            const World w = make_world(s, lengths);
            for (const AttentionMask& mask : masks) {
                const std::vector<Want> wants = wanted(w, items, mask, s.scale(), kAllRows);
                for (const Form form : kForms) {
                    expect_near(w, items, mask, wants, compute(form, w, items, mask));
                    if (HasFatalFailure()) {
                        FAIL() << "form " << static_cast<int>(form);
                    }
                }
            }
        }
    }
}

TEST_F(AttentionGpu, BlocksFromEveryOrigin) {
    const std::vector<Item> items{{0, 131, 70}, {1, 75, 75}, {2, 33, 3}, {3, 100, 1}};
    for (const auto& [dim, type] : {std::pair{64, kBf16}, {96, kF16}, {128, kBf16}, {40, kF32}}) {
        const Shapes s{3, 1, dim, type, type};
        memory_.reset();
        const World w = make_world(s, {131, 75, 33, 100});
        for (const AttentionMask& mask : ops::reference::origin_masks()) {
            const std::vector<Want> wants = wanted(w, items, mask, s.scale(), kAllRows);
            for (const Form form : kForms) {
                expect_near(w, items, mask, wants, compute(form, w, items, mask));
                if (HasFatalFailure()) FAIL() << "form " << static_cast<int>(form);
            }
        }
    }
}

// Pages without a visible key may be gone or belong to another sequence: their entries in the table
// are not followed. A read of one would be far outside of the cache, or give NaN.
TEST_F(AttentionGpu, PagesWithoutAVisibleKeyAreNotRead) {
    for (const int dim : {48, 64, 80, 128, 256}) {
        for (const DType dtype : {kBf16, kF32}) {
            const Shapes s{4, 2, dim, dtype, dtype};
            memory_.reset();
            const World w = make_world(s, {2700, 1000, 131, 180, 97});
            // A page of no sequence: all NaN.
            std::vector<bool> owned(static_cast<std::size_t>(w.kv.keys.dim(0)), false);
            for (const auto& pages : w.pages) {
                for (const std::int32_t page : pages) owned[static_cast<std::size_t>(page)] = true;
            }
            const auto foreign = static_cast<std::int32_t>(
                std::find(owned.begin(), owned.end(), false) - owned.begin());
            for (const AttentionMask& mask :
                 {kNarrowWindow, kItself, kWindow, kWideWindow, kSinks, kBlocksSinks, kManySinks}) {
                for (const int count : {1, 129}) {
                    const std::vector<Item> items{{0, 2700, count},
                                                  {1, 1000, count},
                                                  {2, 131, count},
                                                  {3, 180, count},
                                                  {4, 97, 1}};
                    const std::vector<Want> wants = wanted(w, items, mask, s.scale(), 3);
                    for (const Form form : kForms) {
                        const std::size_t used = memory_.used();
                        Run run = prepare(w, items);
                        give_scratch(s, run.rows, run.batch.max_keys);
                        launch_form(form, w, run, mask);
                        const std::vector<float> want = download(run.out);
                        expect_near(w, items, mask, wants, want);
                        if (HasFatalFailure()) return;
                        for (const std::int32_t gone : {0x3fffffff, foreign}) {
                            std::vector<std::int32_t> table;
                            for (const Item& item : items) {
                                for (int page = 0; page < run.batch.max_pages; ++page) {
                                    const auto& own = w.pages[static_cast<std::size_t>(item.seq)];
                                    table.push_back(any_sees(mask, item, page)
                                                        ? own[static_cast<std::size_t>(page)]
                                                        : gone);
                                }
                            }
                            run.batch.pages = upload(std::span<const std::int32_t>(table));
                            stream_->fill(run.out.data, 0xff, run.out.bytes());
                            launch_form(form, w, run, mask);
                            ASSERT_TRUE(same_bits(want, download(run.out)))
                                << s.str() << ", window " << mask.window << " sinks " << mask.sinks
                                << ", " << count << " rows, form " << static_cast<int>(form)
                                << ", page " << gone;
                        }
                        release(used);
                    }
                }
            }
        }
    }
}

// A table that is as short as the window allows: its entries are used again and again, and all
// others point far outside of the cache.
TEST_F(AttentionGpu, AWindowGoesRoundInAShortTable) {
    for (const int dim : {48, 64, 80, 128, 256}) {
        for (const DType dtype : {kBf16, kF16, kF32}) {
            const Shapes s{4, 2, dim, dtype, dtype};
            memory_.reset();
            const World w = make_world(s, {2700, 1000, 131, 180, 97});
            for (const AttentionMask& mask :
                 {kNarrowWindow, kItself, kWindow, kWideWindow, kBlocksWindow, kFullWindow}) {
                for (const int count : {1, 3, 129}) {
                    const std::vector<Item> items{{0, 2700, count},
                                                  {1, 1000, count},
                                                  {2, 131, std::min(count, 131)},
                                                  {3, 180, count},
                                                  {4, 97, 1}};
                    const auto entries = static_cast<int>(std::bit_ceil(
                        static_cast<unsigned>(ops::pages_spanned(mask.window + count - 1))));
                    std::vector<std::int32_t> table;
                    for (const Item& item : items) {
                        std::vector<std::int32_t> own(static_cast<std::size_t>(entries),
                                                      0x3fffffff);
                        for (int page = 0; page < (item.keys + 31) / 32; ++page) {
                            if (!any_sees(mask, item, page)) continue;
                            own[static_cast<std::size_t>(ops::table_entry(page, entries))] =
                                w.pages[static_cast<std::size_t>(item.seq)]
                                       [static_cast<std::size_t>(page)];
                        }
                        table.insert(table.end(), own.begin(), own.end());
                    }
                    for (const Form form : kForms) {
                        const std::size_t used = memory_.used();
                        Run run = prepare(w, items);
                        give_scratch(s, run.rows, run.batch.max_keys);
                        launch_form(form, w, run, mask);
                        const std::vector<float> want = download(run.out);
                        run.batch.pages = upload(std::span<const std::int32_t>(table));
                        run.batch.max_pages = entries;
                        stream_->fill(run.out.data, 0xff, run.out.bytes());
                        launch_form(form, w, run, mask);
                        ASSERT_TRUE(same_bits(want, download(run.out)))
                            << s.str() << ", window " << mask.window << ", " << count
                            << " rows, form " << static_cast<int>(form) << ", " << entries
                            << " entries";
                        release(used);
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace mr::cuda::paged
