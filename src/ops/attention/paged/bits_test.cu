// What attention's bits must not depend on, how it is launched, and what it refuses.
#include <tuple>

#include "ops/attention/paged/attention_testing.h"
#include "ops/attention/paged/common.cuh"

namespace mr::cuda::paged {
namespace {

TEST_F(AttentionGpu, ARaggedBatchGivesTheBitsOfEachAlone) {
    for (const int dim : {48, 64, 80, 96, 128, 256}) {
        for (const auto& types : kTypes) {
            const Shapes s{4, 2, dim, types.q, types.cache};
            memory_.reset();
            const World w = make_world(s, {300, 2700, 65, 1, 190, 64});
            const std::vector<Item> items{{0, 300, 2}, {1, 2700, 1}, {2, 65, 65},
                                          {3, 1, 1},   {4, 190, 64}, {5, 64, 1}};
            for (const AttentionMask& mask :
                 {kCausal, kWindow, kWideWindow, kBlocks, kSinks, kManySinks}) {
                for (const Form form : kForms) {
                    const std::vector<float> all = compute(form, w, items, mask);
                    for (std::size_t i = 0; i < items.size(); ++i) {
                        const std::vector<float> alone = compute(form, w, {items[i]}, mask);
                        ASSERT_TRUE(same_bits(rows_of(w, items, all, i), alone))
                            << s.str() << ", item " << i << ", form " << static_cast<int>(form);
                    }
                }
            }
        }
    }
}

// All kernels of decode (DecodeKernel), independent of the choice: sequences that end anywhere,
// short and long parts, several rows, windows that begin inside a part, rows of groups. The second
// run checks that the counters are zero again.
TEST_F(AttentionGpu, EveryDecodeKernelGivesTheSameBits) {
    if (this_gpu().sm < 80) GTEST_SKIP() << "one kernel for all";
    const std::vector<int> lengths{1, 16, 17, 64, 65, 300, 2048, 2100, 2561, 3300};
    const int multiprocessors = this_gpu().multiprocessors;
    for (const int dim : {64, 128}) {
        for (const DType dtype : {kBf16, kF16}) {
            for (const int group : {1, 3, 8}) {
                const Shapes s{2 * group, 2, dim, dtype, dtype};
                memory_.reset();
                const World w = make_world(s, lengths);
                std::vector<Item> items;
                for (int i = 0; i < 10; ++i) {
                    const int keys = lengths[static_cast<std::size_t>(i)];
                    items.push_back({i, keys, i % 3 == 0 ? std::min(keys, 1 + i) : 1});
                }
                for (const AttentionMask& mask : {kCausal, kNarrowWindow, kWindow, kWideWindow,
                                                  kBlocks, kSinks, kBlocksSinks, kManySinks}) {
                    const Run run = prepare(w, items);
                    give_scratch(s, run.rows, run.batch.max_keys);
                    const attn::Decode decode =
                        attn::decode_of(ctx_, run.out, run.q, w.kv, run.batch, mask, s.scale());
                    const dim3 grid(2, static_cast<unsigned>(decode.tiles), 7);
                    ASSERT_TRUE(attn::decode_on_tensor_cores(ctx_, dtype, grid, decode.args));
                    const std::vector<float> want = download(run.out);
                    for (int i = 0; i < 2; ++i) {
                        stream_->fill(run.out.data, 0xff, run.out.bytes());
                        ASSERT_TRUE(attn::decode_stream_on_tensor_cores(
                            ctx_, dtype, multiprocessors, decode.tiles, decode.args));
                        ASSERT_TRUE(same_bits(want, download(run.out)))
                            << s.str() << ", mask " << static_cast<int>(mask.kind) << " window "
                            << mask.window << " sinks " << mask.sinks << ", time " << i;
                    }
                    // One warp per part, or one block per sequence: up to 2,048 keys.
                    const std::vector<Item> few(items.begin(), items.begin() + 7);
                    const Run less = prepare(w, few);
                    const attn::Decode part =
                        attn::decode_of(ctx_, less.out, less.q, w.kv, less.batch, mask, s.scale());
                    const auto rows = static_cast<std::size_t>(less.rows * s.heads * dim);
                    for (int i = 0; i < 2; ++i) {
                        stream_->fill(less.out.data, 0xff, less.out.bytes());
                        ASSERT_TRUE(attn::decode_many_on_tensor_cores(ctx_, dtype, multiprocessors,
                                                                      part.tiles, part.args));
                        const std::vector<float> got = download(less.out);
                        ASSERT_TRUE(same_bits({want.begin(), want.begin() + rows}, got))
                            << s.str() << ", window " << mask.window << " sinks " << mask.sinks
                            << ", time " << i;
                    }
                    stream_->fill(less.out.data, 0xff, less.out.bytes());
                    ASSERT_EQ(attn::decode_several_on_tensor_cores(ctx_, dtype, multiprocessors,
                                                                   part.tiles, part.args),
                              mask.sinks == 0);
                    if (mask.sinks > 0) continue;
                    ASSERT_TRUE(same_bits({want.begin(), want.begin() + rows}, download(less.out)))
                        << s.str() << ", one block per sequence, window " << mask.window;
                }
            }
        }
    }
}

// More tiles of rows than a block has warps: several blocks per sequence and head, some without
// rows.
TEST_F(AttentionGpu, SequencesOfManyTilesGiveTheSameBits) {
    if (this_gpu().sm < 80) GTEST_SKIP() << "one kernel for all";
    const std::vector<int> lengths{64, 65, 300, 2048, 7};
    const std::vector<Item> items{{0, 64, 64}, {1, 65, 1}, {2, 300, 33}, {3, 2048, 20}, {4, 7, 7}};
    for (const int dim : {64, 128}) {
        for (const int group : {1, 4, 8}) {
            const Shapes s{2 * group, 2, dim, kBf16, kBf16};
            memory_.reset();
            const World w = make_world(s, lengths);
            for (const AttentionMask& mask : {kCausal, kNarrowWindow, kWideWindow, kBlocks}) {
                const Run run = prepare(w, items);
                give_scratch(s, run.rows, run.batch.max_keys);
                const attn::Decode decode =
                    attn::decode_of(ctx_, run.out, run.q, w.kv, run.batch, mask, s.scale());
                const dim3 grid(2, static_cast<unsigned>(decode.tiles), 7);
                ASSERT_TRUE(attn::decode_on_tensor_cores(ctx_, kBf16, grid, decode.args));
                const std::vector<float> want = download(run.out);
                stream_->fill(run.out.data, 0xff, run.out.bytes());
                ASSERT_TRUE(attn::decode_several_on_tensor_cores(ctx_, kBf16, 132, decode.tiles,
                                                                 decode.args));
                ASSERT_TRUE(same_bits(want, download(run.out)))
                    << s.str() << ", window " << mask.window;
            }
        }
    }
}

// Every decode kernel has a form for calls without sinks and streams (Args::has_views()). A call
// whose sequences may stream, though none does, takes the other form and gives the same bits.
TEST_F(AttentionGpu, BothFormsOfADecodeKernelGiveTheSameBits) {
    if (this_gpu().sm < 80) GTEST_SKIP() << "one form for all";
    const std::vector<int> lengths{1, 17, 65, 300, 2048, 2561, 3300};
    const int multiprocessors = this_gpu().multiprocessors;
    for (const int dim : {64, 80, 96, 128, 256}) {
        for (const int group : {1, 3}) {
            const Shapes s{2 * group, 2, dim, kBf16, kBf16};
            memory_.reset();
            const World w = make_world(s, lengths);
            std::vector<Item> items;
            for (int i = 0; i < 7; ++i) {
                const int keys = lengths[static_cast<std::size_t>(i)];
                items.push_back({i, keys, i % 3 == 0 ? std::min(keys, 1 + i) : 1});
            }
            const std::vector<std::int32_t> none(2 * items.size(), 0);
            const auto* streams =
                reinterpret_cast<const int2*>(upload(std::span<const std::int32_t>(none)));
            const std::vector<Item> few(items.begin(), items.begin() + 5);  // up to 2,048 keys
            for (const AttentionMask& mask : {kCausal, kWindow, kBlocksWindow}) {
                for (const bool all : {true, false}) {
                    const Run run = prepare(w, all ? items : few);
                    give_scratch(s, run.rows, run.batch.max_keys);
                    const attn::Decode plain =
                        attn::decode_of(ctx_, run.out, run.q, w.kv, run.batch, mask, s.scale());
                    attn::Decode viewed = plain;
                    viewed.args.streams = streams;
                    ASSERT_TRUE(!plain.args.has_views() && viewed.args.has_views());
                    std::vector<float> want;
                    const auto compare = [&](const char* name, auto&& start) {
                        for (const bool with : {false, true}) {
                            stream_->fill(run.out.data, 0xff, run.out.bytes());
                            ASSERT_TRUE(start(with ? viewed : plain));
                            const std::vector<float> got = download(run.out);
                            if (want.empty()) {
                                want = got;
                                expect_near(w, all ? items : few, mask, s.scale(), want);
                            }
                            EXPECT_TRUE(same_bits(want, got))
                                << name << ", " << s.str() << ", window " << mask.window
                                << (with ? ", with streams" : "");
                        }
                    };
                    compare("blocks", [&](const attn::Decode& d) {
                        const dim3 grid(2, static_cast<unsigned>(d.tiles), 7);
                        return attn::decode_on_tensor_cores(ctx_, kBf16, grid, d.args);
                    });
                    if (dim != 64 && dim != 128) continue;
                    compare("teams", [&](const attn::Decode& d) {
                        return attn::decode_stream_on_tensor_cores(ctx_, kBf16, multiprocessors,
                                                                   d.tiles, d.args);
                    });
                    if (all) continue;
                    compare("warps", [&](const attn::Decode& d) {
                        return attn::decode_many_on_tensor_cores(ctx_, kBf16, multiprocessors,
                                                                 d.tiles, d.args);
                    });
                }
            }
        }
    }
}

// Every kernel on small inputs, for compute-sanitizer.
TEST_F(AttentionGpu, EveryKernelOnAFewKeys) {
    const std::vector<Item> items{{0, 70, 1}, {1, 130, 3}, {2, 33, 33}};
    const auto check = [&](const World& w, const AttentionMask& mask, const Run& run) {
        expect_near(w, items, mask, w.s.scale(), download(run.out));
        stream_->fill(run.out.data, 0xff, run.out.bytes());
        return !HasFatalFailure();
    };
    for (const Shapes& s : {Shapes{2, 1, 64, kBf16, kBf16}, Shapes{2, 2, 128, kF16, kF16},
                            Shapes{2, 1, 80, kBf16, kBf16}, Shapes{2, 1, 40, kF32, kF32}}) {
        memory_.reset();
        const World w = make_world(s, {70, 130, 33});
        const Run run = prepare(w, items);
        give_scratch(s, run.rows, run.batch.max_keys);
        for (const AttentionMask& mask : {kCausal, kNarrowWindow, kSinks}) {
            for (const Form form : kForms) {
                launch_form(form, w, run, mask);
                ASSERT_TRUE(check(w, mask, run)) << s.str();
            }
            if (s.dim % 64 != 0 || this_gpu().sm < 80) continue;
            const attn::Decode d =
                attn::decode_of(ctx_, run.out, run.q, w.kv, run.batch, mask, s.scale());
            for (const auto kernel :
                 {attn::decode_many_on_tensor_cores, attn::decode_stream_on_tensor_cores,
                  attn::decode_several_on_tensor_cores}) {
                // One block per sequence: not with sinks.
                const bool takes = kernel != attn::decode_several_on_tensor_cores || !mask.sinks;
                ASSERT_EQ(kernel(ctx_, s.q, 2, d.tiles, d.args), takes);
                ASSERT_TRUE(!takes || check(w, mask, run)) << s.str();
            }
        }
    }
}

// Enough sequences and heads for a persistent kernel (many.cu,
// with groups stream.cu); alone, most sequences use another
// kernel. Some have several rows, some no key in the last page.
TEST_F(AttentionGpu, ManySequencesGiveTheBitsOfEachAlone) {
    std::vector<int> lengths;
    for (int i = 0; i < 40; ++i) lengths.push_back(1 + i * 137 % 700);
    lengths[7] = 2048, lengths[8] = 64, lengths[9] = 16;
    for (const int dim : {64, 128}) {
        for (const DType dtype : {kBf16, kF16}) {
            for (const int heads : {16, 32}) {
                const Shapes s{heads, 16, dim, dtype, dtype};
                memory_.reset();
                const World w = make_world(s, lengths);
                std::vector<Item> items;
                for (int i = 0; i < 40; ++i) {
                    const int keys = lengths[static_cast<std::size_t>(i)];
                    items.push_back({i, keys, i % 3 == 0 ? std::min(keys, 1 + i % 11) : 1});
                }
                for (const AttentionMask& mask : {kCausal, kWindow, kBlocks}) {
                    const std::vector<float> all = compute(Form::decode, w, items, mask);
                    for (std::size_t i = 0; i < items.size(); ++i) {
                        const std::vector<float> alone = compute(Form::decode, w, {items[i]}, mask);
                        ASSERT_TRUE(same_bits(rows_of(w, items, all, i), alone))
                            << s.str() << ", item " << i;
                    }
                }
            }
        }
    }
}

// A causal row has the same bits as if it were the last row of its sequence, also if its block is
// not the first and the rows go through prefill.
constexpr AttentionMask kCausalSinks{AttentionMask::Kind::causal, 1, 100, 330};
TEST_F(AttentionGpu, BitsDoNotDependOnTheOtherRowsOfTheSequence) {
    constexpr int kRows = 300, kKeys = 2100;
    for (const int dim : {40, 64, 80, 96, 128, 256}) {
        for (const DType dtype : {kBf16, kF32}) {
            const Shapes s{8, 2, dim, dtype, dtype};
            memory_.reset();
            const World w = make_world(s, {2200});
            for (const Form form : kForms) {
                for (const AttentionMask& mask : {kCausal, kWindow, kSinks, kCausalSinks}) {
                    const std::vector<float> all = compute(form, w, {{0, kKeys, kRows}}, mask);
                    const std::int64_t width = std::int64_t{s.heads} * dim;
                    for (const int t : {0, 1, 7, 63, 64, 127, 128, 191, 192, kRows - 1}) {
                        const std::vector<float> alone =
                            compute(form, w, {{0, kKeys - kRows + 1 + t, 1}}, mask);
                        const std::vector<float> row(all.begin() + t * width,
                                                     all.begin() + (t + 1) * width);
                        ASSERT_TRUE(same_bits(row, alone))
                            << s.str() << ", form " << static_cast<int>(form) << ", window "
                            << mask.window << " sinks " << mask.sinks << ", row " << t;
                    }
                }
            }
        }
    }
}

TEST_F(AttentionGpu, DecodeBitsDoNotDependOnTheGrid) {
    for (const int dim : {56, 64, 128}) {
        const Shapes s{4, 4, dim, kF16, kF16};
        memory_.reset();
        const World w = make_world(s, {2900, 130, 64});
        const std::vector<Item> items{{0, 2900, 1}, {1, 130, 1}, {2, 64, 1}};
        const std::vector<float> want = compute(Form::decode, w, items, kCausal);
        for (const int max_keys : {2901, 4096, 20000, 500000}) {
            ASSERT_TRUE(same_bits(want, compute(Form::decode, w, items, kCausal, max_keys)))
                << max_keys;
        }
    }
}

// Long and short sequences, with one row, several and a prompt; with sinks, whose parts are
// distributed separately.
TEST_F(AttentionGpu, HundredRunsGiveTheSameBits) {
    for (const auto& [dim, dtype, mask] : {std::tuple{64, kBf16, kCausal},
                                           {72, kBf16, kCausal},
                                           {128, kBf16, kCausal},
                                           {256, kBf16, kCausal},
                                           {64, kF16, kSinks},
                                           {128, kBf16, kManySinks},
                                           {128, kBf16, kBlocksSinks},
                                           {64, kF32, kSinks}}) {
        const Shapes s{8, 2, dim, dtype, dtype};
        memory_.reset();
        const World w = make_world(s, {3000, 500, 129});
        const std::vector<Item> items{{0, 3000, 1}, {1, 500, 3}, {2, 129, 129}};
        for (const Form form : kForms) {
            const Run run = prepare(w, items);
            give_scratch(s, run.rows, run.batch.max_keys);
            const auto bits = [&] {
                stream_->fill(run.out.data, 0xff, run.out.bytes());
                launch_form(form, w, run, mask);
                return download(static_cast<const std::uint32_t*>(run.out.data),
                                run.out.bytes() / 4);
            };
            const std::vector<std::uint32_t> first = bits();
            for (int i = 1; i < 100; ++i) {
                ASSERT_TRUE(bits() == first)
                    << s.str() << ", sinks " << mask.sinks << ", run " << i;
            }
        }
    }
}

// One captured step is replayed while the sequences grow: everything is read from the device.
TEST_F(AttentionGpu, AGraphFollowsThePositions) {
    const Shapes s{4, 2, 128, kBf16, kBf16};
    const World w = make_world(s, {2300, 200});
    const std::vector<Item> start{{0, 2100, 1}, {1, 60, 1}};
    const Run run = prepare(w, {{0, 2300, 1}, {1, 200, 1}}, 2304);  // pages for all of it
    give_scratch(s, run.rows, 2304);
    Tensor q = run.q;
    const Graph graph = Graph::capture(*stream_, [&] {
        for (int i = 0; i < 3; ++i) launch_form(Form::decode, w, run, kCausal);
    });
    for (int step = 0; step < 8; ++step) {
        const std::vector<Item> now{{0, start[0].keys + 25 * step, 1},
                                    {1, start[1].keys + step, 1}};
        const Run direct = prepare(w, now);
        stream_->on_device(q.data, direct.q.data, q.bytes());
        stream_->on_device(run.positions, direct.positions, 8);
        stream_->fill(run.out.data, 0xff, run.out.bytes());
        graph.launch(*stream_);
        const std::vector<float> got = download(run.out);
        expect_near(w, now, kCausal, s.scale(), got);
        ASSERT_TRUE(same_bits(got, compute_from(w, now))) << step;
    }
}

TEST_F(AttentionGpu, ASubBatchTouchesItsOwnRowsAlone) {
    for (const Form form : kForms) {
        const Shapes s{4, 2, 64, kF16, kF16};
        memory_.reset();
        const World w = make_world(s, {100, 70, 2200});
        const std::vector<Item> items{{0, 100, 3}, {1, 70, 1}, {2, 2200, 2}};
        const Run run = prepare(w, items, 0, 50);  // 50 rows of another batch precede
        give_scratch(s, static_cast<int>(items.size()) * 3, run.batch.max_keys);
        launch_form(form, w, run, kCausal);
        const std::vector<float> got = download(run.out);
        const std::size_t before = std::size_t{50} * 4 * 64;
        for (std::size_t i = 0; i < before; ++i) ASSERT_TRUE(std::isnan(got[i])) << i;
        expect_near(w, items, kCausal, s.scale(), {got.begin() + before, got.end()});
    }
}

TEST_F(AttentionGpu, TheFormIsChosenByTheRows) {
    const Shapes s{2, 2, 64, kBf16, kBf16};
    const World w = make_world(s, {200});
    for (const int count : {1, 64, 65, 200}) {
        const std::vector<Item> items{{0, 200, count}};
        const Form form = count <= kDecodeRows ? Form::decode : Form::prefill;
        EXPECT_TRUE(
            same_bits(compute(Form::chosen, w, items, kCausal), compute(form, w, items, kCausal)));
    }
}

TEST_F(AttentionGpu, BrokenContractsAreNamed) {
    const Shapes s{4, 2, 64, kBf16, kBf16};
    const World w = make_world(s, {100});
    const Run run = prepare(w, {{0, 100, 1}});
    const auto go = [&](const Tensor& q, const PagedKv& kv, const DeviceBatch& batch, float scale) {
        attention(ctx_, q, q, kv, batch, kCausal, scale);
    };
    const auto expect_broken = [](const char* contract, auto&& body) {
        try {
            body();
            ADD_FAILURE() << "accepted: " << contract;
        } catch (const ContractError& error) {
            EXPECT_NE(std::string(error.what()).find(contract), std::string::npos) << error.what();
        }
    };
    const auto expect_scratch = [&](const DeviceBatch& batch) {
        expect_broken("is given attention_scratch_bytes()", [&] { go(run.q, w.kv, batch, 1); });
    };
    expect_scratch(run.batch);  // no scratch
    give_scratch(s, 1, 100);
    EXPECT_NO_THROW(go(run.q, w.kv, run.batch, 1));
    expect_broken("the scale is positive", [&] { go(run.q, w.kv, run.batch, 0); });
    const auto expect_refused = [&](const char* contract, void* data, Shape shape) {
        expect_broken(contract, [&] { go({data, kBf16, shape}, w.kv, run.batch, 1); });
    };
    expect_refused("heads is a multiple of kv_heads", run.q.data, {1, 3, 64});
    expect_refused("q has the head_dim of the cache", run.q.data, {1, 4, 32});
    expect_refused("the tensors have memory", nullptr, {1, 4, 64});
    expect_refused("a multiple of 16 bytes", static_cast<std::byte*>(run.q.data) + 2, {1, 4, 64});
    DeviceBatch batch = run.batch;
    batch.max_pages = 2;
    expect_broken("the page tables have room for max_keys", [&] { go(run.q, w.kv, batch, 1); });
    batch = run.batch;
    batch.max_keys = 1 << 20;
    batch.max_pages = 1 << 15;
    expect_scratch(batch);  // scratch for fewer keys
    PagedKv pages_of_16 = w.kv;
    pages_of_16.keys.shape = pages_of_16.values.shape = {6, 2, 16, 64};
    expect_broken("a page holds 32 tokens", [&] { go(run.q, pages_of_16, run.batch, 1); });
}

}  // namespace
}  // namespace mr::cuda::paged
