// A text that fills itself in: the state of its block lies on the device
// (ops/denoise/block_cuda.h), so the passes of a block follow each other without the host. They are
// captured: all of them as a loop that the kernel which settles guesses ends, or each as a graph of
// its own.
#include <algorithm>
#include <cstring>

#include "core/cuda/spin.h"
#include "core/error.h"
#include "model/cuda/device_resident.h"

namespace mr::model {
namespace {

static_assert(sizeof(cuda::BlockState) <= DeviceBuffers::kBlockWords * 8);

cuda::BlockReport* report_in(const cuda::PinnedBuffer& memory) {
    return reinterpret_cast<cuda::BlockReport*>(memory.data());
}

}  // namespace

bool Resident::takes_block(const OpenBlock& open) const {
    if (!options_.graph || options_.check_nan || options_.stream || watched_) return false;
    if (!spec_.diffusion || spec_.diffusion->block == 0) return false;
    const auto before = std::max<std::int64_t>(open.block, std::ssize(open.before));
    const std::int64_t rows =
        open.apart ? before : std::min<std::int64_t>(before + open.block, kDecodePrompt);
    return before <= cuda::kBlockPlaces &&
           rows <= std::min({options_.max_batch, decode_rows(options_)}) &&
           open.block <= options_.max_logits;
}

void Resident::open_block(const OpenBlock& open) {
    MR_CHECK(takes_block(open), "the engine is made for such blocks");
    MR_CHECK(open.ids.size() == open.known.size() && std::ssize(open.ids) <= open.block &&
                 !open.ids.empty() && open.part >= 1,
             "a block has places, each with its token or the mask");
    MR_CHECK(!spec_.diffusion->shifted || !open.before.empty() || open.known[0],
             "the last token before a block speaks of its first place");
    ops::check_sample_params(*open.sampling);
    if (fill_report_.size() == 0) {
        fill_report_ = cuda::PinnedBuffer(sizeof(cuda::BlockReport));
        std::memset(fill_report_.data(), 0, fill_report_.size());
    }
    fill_ = {};
    fill_.seq = open.seq;
    fill_.apart = open.apart;
    fill_.block = static_cast<int>(open.block);
    fill_.before = static_cast<int>(open.before.size());
    fill_.start = open.start;
    fill_.end = open.start + std::ssize(open.ids);
    fill_.size = open.size;
    fill_.mask = open.mask;
    cache_->reserve(open.seq, open.size);

    staging_.begin();
    cuda::BlockState state{};
    state.row = cuda::guess_row(*open.sampling, *open.how, 0, 0, -1);
    state.how = *open.how;
    state.mask = spec_.diffusion->mask;
    state.block = fill_.block;
    state.part = static_cast<int>(open.part);
    state.size = static_cast<std::int32_t>(open.size);
    state.start = static_cast<std::int32_t>(open.start);
    state.from = state.start - fill_.before;
    state.end = static_cast<std::int32_t>(fill_.end);
    state.pass = open.pass;
    for (std::size_t i = 0; i < open.known.size(); ++i) {
        if (open.known[i]) state.known |= std::uint64_t{1} << i;
    }
    std::copy(open.ids.begin(), open.ids.end(), state.ids);
    std::copy(open.before.begin(), open.before.end(), state.before);
    std::int32_t* const from = staging_.take(sizeof state / sizeof(std::int32_t));
    std::memcpy(from, &state, sizeof state);
    stream_.to_device(buffers_.block, from, sizeof state, &ledger_);
    // All pages of the text: its blocks ask the host for nothing.
    const auto [entry, pages] = cache_->table_part(open.seq);
    std::int32_t* const table = staging_.take(pages.size());
    std::copy(pages.begin(), pages.end(), table);
    stream_.to_device(buffers_.pass.pages + entry, table, pages.size_bytes(), &ledger_);
    staging_.end(stream_);
    // Counted from 0 again. No pass of an earlier text is on its way: each was waited for.
    report_in(fill_report_)->progress = 0;
    fill_.open = true;
}

// `before` tokens that the pass commits, and `places` of the open block; 0: it only commits.
void Resident::launch_block_pass(const FillKey& key, int before, int places,
                                 cuda::LoopGraph::Loop loop) {
    const DeviceBuffers::Arrays& a = buffers_.pass;
    auto* const state = reinterpret_cast<cuda::BlockState*>(buffers_.block);
    auto* const made = reinterpret_cast<cuda::DeviceGuess*>(buffers_.guesses);
    const bool shifted = spec_.diffusion->shifted;
    cuda::BlockRows rows;
    rows.ids = a.ids;
    rows.positions = a.positions;
    rows.sequence = a.sequence;
    rows.first = a.first;
    rows.guesses = reinterpret_cast<cuda::GuessRow*>(buffers_.guess_rows);
    rows.count = before + places;
    rows.commits = places == 0;
    // Shifted logits: the last row before a block speaks of its first place.
    rows.asked = places > 0 ? places : shifted ? 1 : 0;
    rows.place = places > 0 && shifted ? 1 : 0;
    cuda::block_rows(ctx_, state, rows);
    Part part;
    part.mask = fill_.mask;
    ops::DeviceBatch& batch = part.batch;
    batch.tokens = batch.max_count = rows.count;
    batch.sequences = 1;
    batch.max_keys = key.keys;
    batch.total_keys = 0;  // fill_block() adds them
    batch.ids = a.ids;
    batch.positions = a.positions;
    batch.sequence = a.sequence;
    batch.first = a.first;
    batch.pages = a.pages;
    batch.max_pages = buffers_.max_pages;
    run(part);
    if (rows.asked > 0) {
        const Tensor logits = rows_as(buffers_.logits, DType::f32, 0, rows.asked, spec_.vocab);
        const int first = places > 0 ? before : before - 1;
        heads(logits, rows_as(buffers_.x, DType::f32, first, rows.asked, spec_.dim), true);
        cuda::guess(ctx_, logits, rows.guesses, spec_.diffusion->mask, made);
    }
    cuda::block_choose(ctx_, state, rows, made,
                       reinterpret_cast<cuda::BlockReport*>(fill_report_.on_device()), loop);
}

const Resident::CapturedFill& Resident::captured(const FillKey& key) {
    if (const CapturedFill* const found = fills_.find(key)) return *found;
    CapturedFill made;
    if (key.before > 0 && key.apart) {
        made.first_passes.emplace_back(key.before, 0);
        if (!spec_.diffusion->shifted) made.first_passes.emplace_back(0, key.places);
    } else {
        made.first_passes.emplace_back(key.before, key.places);
    }
    const auto first = [&](cuda::LoopGraph::Loop loop) {
        const Meanwhile account(ctx_.ledger, &made.first.ledger);
        for (const auto& [before, places] : made.first_passes) {
            launch_block_pass(key, before, places, loop);
        }
    };
    const auto again = [&](cuda::LoopGraph::Loop loop) {
        const Meanwhile account(ctx_.ledger, &made.again.ledger);
        launch_block_pass(key, 0, key.places, loop);
    };
    if (options_.loop && cuda::LoopGraph::possible()) {
        made.loop = cuda::LoopGraph::capture(stream_, first, again);
    } else {
        made.first.graph = cuda::Graph::capture(stream_, [&] { first(0); });
        made.again.graph = cuda::Graph::capture(stream_, [&] { again(0); });
    }
    // The host reads a block as soon as it is reported: the graph that gives way may still be
    // ending.
    if (fills_.full()) stream_.synchronize();
    return fills_.put(key, std::move(made));
}

// Until so many blocks have been filled, or so many passes made, whichever is first.
void Resident::wait_for_passes(std::uint64_t blocks, std::uint64_t passes) {
    const std::uint64_t* const progress = &report_in(fill_report_)->progress;
    cuda::spin_until(stream_, [&] {
        fill_.progress = __atomic_load_n(progress, __ATOMIC_ACQUIRE);
        return fill_.progress >> 32 >= blocks || (fill_.progress & 0xffffffffu) >= passes;
    });
}

FilledBlock Resident::fill_block() {
    MR_CHECK(fill_.open && fill_.start < fill_.size, "a block is open");
    const auto places = static_cast<int>(fill_.end - fill_.start);
    const int keys = key_for(1, fill_.end, cuda::SampleKind::any).keys;
    const bool apart = fill_.apart || fill_.before + places > kDecodePrompt;
    const CapturedFill& passes = captured(FillKey{fill_.before, places, keys, fill_.block, apart});
    const std::uint64_t blocks = (fill_.progress >> 32) + 1, done = fill_.progress & 0xffffffffu;
    constexpr std::uint64_t kNever = ~std::uint64_t{0};
    if (passes.loop) {
        passes.loop.launch(stream_);
        wait_for_passes(blocks, kNever);
    } else {
        passes.first.graph.launch(stream_);
        wait_for_passes(blocks, done + passes.first_passes.size());
        while (fill_.progress >> 32 < blocks) {
            passes.again.graph.launch(stream_);
            wait_for_passes(blocks, (fill_.progress & 0xffffffffu) + 1);
        }
    }
    const auto made = static_cast<std::int64_t>((fill_.progress & 0xffffffffu) - done);
    // The account of the passes: what was captured, and the keys.
    const std::uint64_t element = cache_->layer(0).keys.dtype == DType::f32 ? 4 : 2;
    const auto add = [&](const Ledger& ledger, int before, int rows) {
        ledger_.add(ledger);
        const auto seen = static_cast<std::uint64_t>(rows > 0 ? fill_.end : fill_.start);
        const auto all = static_cast<std::uint64_t>(before + rows);
        for (int i = 0; i < spec_.layers; ++i) {
            ledger_.add(OpKind::attention,
                        {0, 2 * seen * static_cast<std::uint64_t>(spec_.kv_dim()) * element, 0,
                         4 * seen * all * static_cast<std::uint64_t>(spec_.q_dim()), 0});
        }
    };
    for (const auto& [before, rows] : passes.first_passes) add({}, before, rows);
    ledger_.add(passes.first.ledger);
    for (auto i = static_cast<std::int64_t>(passes.first_passes.size()); i < made; ++i) {
        add(passes.again.ledger, 0, places);
    }
    const auto ids = static_cast<std::size_t>(places);
    ledger_.add_device_to_host(ids * sizeof(std::int32_t) +
                               static_cast<std::size_t>(made) * sizeof(std::uint64_t));

    const cuda::BlockReport& report = *report_in(fill_report_);
    if (report.flags != 0) fill_.open = false;
    cuda::check_sample_flags(report.flags);
    cache_->advance(fill_.seq, fill_.before);
    fill_.before = places;
    fill_.start = fill_.end;
    fill_.end = std::min(fill_.end + fill_.block, fill_.size);
    return {{report.ids, ids}, made};
}

}  // namespace mr::model
