// A diffusion text that the device fills in by itself: the state of its block lies there
// (ops/denoise/block_cuda.h), so the passes of a block run without the host. They are captured: all
// of them as a loop, which the kernel that settles guesses ends, or each as a graph. With full
// attention the whole text lies on the device, too.
#include <algorithm>
#include <bit>
#include <cstring>

#include "core/cuda/spin.h"
#include "core/cuda/timer.h"
#include "core/error.h"
#include "model/cuda/device_resident.h"
#include "ops/embedding/embedding_cuda.h"

namespace mr::model {
namespace {

static_assert(sizeof(cuda::BlockState) <= DeviceBuffers::kBlockWords * 8);

cuda::BlockReport* report_in(const cuda::PinnedBuffer& memory) {
    return reinterpret_cast<cuda::BlockReport*>(memory.data());
}

// Full attention: a pass computes the text to its end, from its beginning or from the kept tokens
// on.
bool whole_texts(const ModelSpec& spec) { return spec.diffusion->block == 0; }
// A place's logits are this many rows before it.
int shift_of(const ModelSpec& spec) { return spec.diffusion->shifted ? 1 : 0; }
bool in_decode_form(std::int64_t tokens) { return form_of_prompt(tokens) == Form::decode; }

}  // namespace

bool Resident::takes_block(const OpenBlock& open) const {
    if (!options_.graph || options_.check_nan || options_.stream || watched_) return false;
    if (!spec_.diffusion) return false;
    if (whole_texts(spec_)) {
        return open.block <= std::min(cuda::kBlockPlaces, options_.max_logits) &&
               open.size <= options_.max_batch &&
               (!in_decode_form(open.size) || open.size <= decode_rows(options_));
    }
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
    const bool whole = whole_texts(spec_);
    MR_CHECK(std::ssize(open.text) == (whole ? open.size : 0) && (!whole || open.before.empty()) &&
                 (whole || !open.keeps),
             "where attention is full, and there alone, the whole text is given");
    MR_CHECK(
        shift_of(spec_) == 0 || (whole ? open.start > 0 : !open.before.empty()) || open.known[0],
        "the last token before a block speaks of its first place");
    ops::check_sample_params(*open.sampling);
    if (fill_report_.size() == 0) {
        fill_report_ = cuda::PinnedBuffer(sizeof(cuda::BlockReport));
        std::memset(fill_report_.data(), 0, fill_report_.size());
    }
    fill_ = {};
    fill_.seq = open.seq;
    fill_.apart = open.apart;
    fill_.filtered = ops::draw_is_filtered(*open.sampling, spec_.vocab, -1);
    fill_.block = static_cast<int>(open.block);
    fill_.before = static_cast<int>(open.before.size());
    fill_.keeps = open.keeps;
    fill_.refresh = open.keeps && open.pass == 0;
    if (open.keeps) fill_.before = static_cast<int>(open.start) - shift_of(spec_);
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
    state.from = state.start - static_cast<std::int32_t>(open.before.size());
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
    // Sends all pages of the text: its blocks need nothing from the host.
    if (whole) {
        // Also the rows of a pass, from which all passes take theirs.
        const BatchItem item{.seq = open.seq, .tokens = open.text};
        Pass pass;
        pass.items = {&item};
        pass.seqs = {{0, static_cast<std::int32_t>(open.size), 0, {}}};
        const std::size_t items[] = {0};
        upload(pass, items, 0, 0, buffers_.pass.first, in_decode_form(open.size));
    } else {
        const auto [entry, pages] = cache_->table_part(open.seq);
        std::int32_t* const table = staging_.take(pages.size());
        std::copy(pages.begin(), pages.end(), table);
        stream_.to_device(buffers_.pass.pages + entry, table, pages.size_bytes(), &ledger_);
    }
    staging_.end(stream_);
    // Starts again at 0. No pass of an earlier text is in flight: all were waited for.
    report_in(fill_report_)->progress = 0;
    fill_.open = true;
}

// The rows of a pass: `before` tokens to commit, and `places` of the open block (0: it only
// commits). With full attention, `before` tokens are in the cache already.
Resident::BlockPass Resident::block_pass(const FillKey& key, int before, int places) const {
    const DeviceBuffers::Arrays& a = buffers_.pass;
    const int shift = shift_of(spec_);
    BlockPass pass;
    cuda::BlockRows& rows = pass.rows;
    rows.ids = a.ids;
    rows.positions = a.positions;
    rows.sequence = a.sequence;
    rows.first = a.first;
    rows.guesses = reinterpret_cast<cuda::GuessRow*>(buffers_.guess_rows);
    pass.part.mask = fill_.mask;
    ops::DeviceBatch& batch = pass.part.batch;
    if (whole_texts(spec_)) {
        rows.text = a.ids;
        rows.asked_at = a.rows;
        rows.speaks_of = before + shift;
        rows.count = key.keys - before;
        rows.asked = places;
        pass.part.few = in_decode_form(rows.count);
    } else {
        rows.count = before + places;
        rows.commits = places == 0;
        // Shifted logits: the last row before a block predicts its first place.
        rows.asked = places > 0 ? places : shift;
        rows.place = places > 0 ? shift : 0;
        pass.first_asked = places > 0 ? before : before - 1;
        batch.total_keys = 0;  // fill_block() adds the keys
    }
    const int row = rows.text ? before : 0;  // of the arrays
    batch.tokens = batch.max_count = rows.count;
    batch.sequences = 1;
    batch.max_keys = key.keys;
    batch.ids = a.ids + row;
    batch.positions = a.positions + row;
    batch.sequence = a.sequence + row;
    batch.first = a.first;
    batch.pages = a.pages;
    batch.max_pages = buffers_.max_pages;
    return pass;
}

void Resident::launch_block_layers(const BlockPass& pass) {
    cuda::block_rows(ctx_, reinterpret_cast<cuda::BlockState*>(buffers_.block), pass.rows);
    run(pass.part);
}

// The rows, after the layers, that need logits.
Tensor Resident::asked_rows(const BlockPass& pass) {
    const cuda::BlockRows& rows = pass.rows;
    if (!rows.text) {
        return rows_as(buffers_.x, DType::f32, pass.first_asked, rows.asked, spec_.dim);
    }
    const Tensor x = rows_as(buffers_.last, DType::f32, 0, rows.asked, spec_.dim);
    cuda::gather_rows(ctx_, x, buffers_.x, rows.asked_at, rows.asked);
    return x;
}

void Resident::launch_block_pass(const FillKey& key, int before, int places,
                                 cuda::LoopGraph::Loop loop) {
    const BlockPass pass = block_pass(key, before, places);
    launch_block_layers(pass);
    if (pass.rows.asked > 0) head_guesses(asked_rows(pass), 0, key.filtered);
    cuda::block_choose(ctx_, reinterpret_cast<cuda::BlockState*>(buffers_.block), pass.rows,
                       reinterpret_cast<cuda::DeviceGuess*>(buffers_.guesses),
                       reinterpret_cast<cuda::BlockReport*>(fill_report_.on_device()), loop);
}

// At the first use of a shape, GEMMs of many rows choose an algorithm: they ask the library,
// which does not answer while a stream is captured, try its candidates, and wait for the device.
// So the layers run once outside a graph, for each number of rows that may have another
// algorithm: powers of two (cublaslt::kSteps). The graph's passes overwrite what this run
// stores.
void Resident::warm_up(const FillKey& key, int before) {
    const int rows = key.keys - before;
    if (in_decode_form(rows)) return;
    if (!warm_rows_.insert(std::bit_ceil(static_cast<std::uint64_t>(rows))).second) return;
    const Meanwhile account(ctx_.ledger, static_cast<Ledger*>(nullptr));
    launch_block_layers(block_pass(key, before, key.places));
}

// With full attention: tokens that passes after the first find in the cache.
static int kept_of(const ModelSpec& spec, const auto& key) {
    return whole_texts(spec) ? key.before : 0;
}

std::vector<std::pair<int, int>> Resident::first_passes(const FillKey& key) const {
    if (whole_texts(spec_)) return {{key.apart ? 0 : key.before, key.places}};
    if (key.before == 0 || !key.apart) return {{key.before, key.places}};
    if (spec_.diffusion->shifted) return {{key.before, 0}};
    return {{key.before, 0}, {0, key.places}};
}

const Resident::CapturedFill& Resident::captured(const FillKey& key) {
    if (const CapturedFill* const found = fills_.find(key)) return *found;
    CapturedFill made;
    made.first_passes = first_passes(key);
    const int kept = kept_of(spec_, key);
    if (whole_texts(spec_)) {
        warm_up(key, made.first_passes.front().first);
        warm_up(key, kept);
    }
    const auto first = [&](cuda::LoopGraph::Loop loop) {
        const Meanwhile account(ctx_.ledger, &made.first.ledger);
        for (const auto& [before, places] : made.first_passes) {
            launch_block_pass(key, before, places, loop);
        }
    };
    const auto again = [&](cuda::LoopGraph::Loop loop) {
        const Meanwhile account(ctx_.ledger, &made.again.ledger);
        launch_block_pass(key, kept, key.places, loop);
    };
    if (options_.loop && cuda::LoopGraph::possible()) {
        made.loop = cuda::LoopGraph::capture(stream_, first, again);
    } else {
        made.first.graph = cuda::Graph::capture(stream_, [&] { first(0); });
        made.again.graph = cuda::Graph::capture(stream_, [&] { again(0); });
    }
    // The host reads a block as soon as it is reported: an evicted graph may still be
    // ending.
    if (fills_.full()) stream_.synchronize();
    return fills_.put(key, std::move(made));
}

// Waits until `blocks` blocks are filled or `passes` passes are made, whichever comes first.
void Resident::wait_for_passes(std::uint64_t blocks, std::uint64_t passes) {
    const std::uint64_t* const progress = &report_in(fill_report_)->progress;
    cuda::spin_until(stream_, [&] {
        fill_.progress = __atomic_load_n(progress, __ATOMIC_ACQUIRE);
        return fill_.progress >> 32 >= blocks || (fill_.progress & 0xffffffffu) >= passes;
    });
}

Resident::FillKey Resident::fill_key() const {
    MR_CHECK(fill_.open && fill_.start < fill_.size, "a block is open");
    const auto places = static_cast<int>(fill_.end - fill_.start);
    const bool whole = whole_texts(spec_);
    const int keys =
        whole ? static_cast<int>(fill_.size) : key_for(1, fill_.end, cuda::SampleKind::any).keys;
    const bool apart = whole ? fill_.refresh : fill_.apart || fill_.before + places > kDecodePrompt;
    return {fill_.before, places, keys, fill_.block, apart, fill_.filtered};
}

// Overwrites cache entries that the block's own passes compute again.
Engine::ForwardTimes Resident::time_forward() {
    constexpr int kCalls = 8;
    const FillKey key = fill_key();
    const Meanwhile account(ctx_.ledger, static_cast<Ledger*>(nullptr));
    const auto seconds_of = [&](int before, int places) {
        const BlockPass pass = block_pass(key, before, places);
        cuda::block_rows(ctx_, reinterpret_cast<cuda::BlockState*>(buffers_.block), pass.rows);
        const Tensor logits =
            rows_as(buffers_.logits, DType::f32, 0, std::max(pass.rows.asked, 1), spec_.vocab);
        return cuda::seconds_per_call(stream_, kCalls, [&](int) {
            run(pass.part);
            if (pass.rows.asked > 0) heads(logits, asked_rows(pass), true);
        });
    };
    ForwardTimes& out = forward_times_[key];
    if (out.first_passes > 0) return out;
    for (const auto& [before, places] : first_passes(key)) {
        out.first += seconds_of(before, places);
        ++out.first_passes;
    }
    out.again = seconds_of(kept_of(spec_, key), key.places);
    return out;
}

FilledBlock Resident::fill_block() {
    const FillKey key = fill_key();
    const int places = key.places;
    const bool whole = whole_texts(spec_);
    const CapturedFill& passes = captured(key);
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
    // The ledger of the passes: what was captured, and the keys.
    const std::uint64_t element = cache_->layer(0).keys.dtype == DType::f32 ? 4 : 2;
    const auto add = [&](const Ledger& ledger, int before, int rows) {
        ledger_.add(ledger);
        if (whole) return;  // each capture has one number of keys
        const auto seen = static_cast<std::uint64_t>(rows > 0 ? fill_.end : fill_.start);
        // NOLINTNEXTLINE(bugprone-misplaced-widening-cast): positions of a context fit into an int
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
    // With full attention, the newly kept tokens replace those kept before.
    cache_->advance(fill_.seq, fill_.before - (whole ? cache_->length(fill_.seq) : 0));
    fill_.refresh = fill_.keeps;
    fill_.before = places;
    if (whole) fill_.before = fill_.keeps ? static_cast<int>(fill_.end) - shift_of(spec_) : 0;
    fill_.start = fill_.end;
    fill_.end = std::min(fill_.end + fill_.block, fill_.size);
    return {{report.ids, ids}, made};
}

}  // namespace mr::model
