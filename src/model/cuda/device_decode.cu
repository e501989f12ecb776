// Fed rows: which slot has which row, and the decode step from one drawn id to the next, captured
// and replayed, with its ledger.
#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "model/cuda/device_resident.h"
#include "model/cuda/device_rows.cuh"
#include "model/not_finite.h"
#include "ops/embedding/embedding_cuda.h"

namespace mr::model {
namespace {

using rows::Rows;

Rows rows_of(const DeviceTensors& of) {
    return {of.decode.positions,
            of.decode.pages,
            reinterpret_cast<int2*>(of.circles),
            of.max_pages,
            reinterpret_cast<int2*>(of.decode.streams),
            of.decode.fronts,
            of.max_fronts};
}

// For a row whose pages are no ring: no page number is this large.
constexpr std::int32_t kNoCircle = std::numeric_limits<std::int32_t>::max();

}  // namespace

// ---- slots and rows -----------------------------------------------------------------------------

// All rows start idle. Steps are captured now, so that none stalls on it later.
void Resident::prepare_rows() {
    const int most = row_bucket(options_.max_sequences);
    for (const LayerSpec& of : layers_) {
        std::size_t at = 0;
        while (at < masks_.size() && masks_[at].mask != of.mask) ++at;
        if (at == masks_.size()) masks_.push_back({of.mask, 0});
        mask_of_.push_back(at);
    }
    slots_.resize(static_cast<std::size_t>(options_.max_sequences));
    rows_.reserve(slots_.size());
    spare_ = cache_->take_page();
    const DeviceBuffers::Arrays& to = buffers_.decode;
    const auto rows = static_cast<std::size_t>(most);
    std::vector<std::int32_t> numbers(rows + 1);
    for (std::size_t i = 0; i <= rows; ++i) numbers[i] = static_cast<std::int32_t>(i);
    stream_.to_device(to.sequence, numbers.data(), rows * sizeof(std::int32_t), &ledger_);
    stream_.to_device(to.first, numbers.data(), (rows + 1) * sizeof(std::int32_t), &ledger_);
    stream_.fill(to.positions, 0, rows * sizeof(std::int32_t));
    const std::vector<std::int32_t> pages(rows * static_cast<std::size_t>(buffers_.max_pages),
                                          spare_);
    stream_.to_device(to.pages, pages.data(), pages.size() * sizeof(std::int32_t), &ledger_);
    const std::vector<std::int32_t> circles(2 * rows, kNoCircle);
    stream_.to_device(buffers_.circles, circles.data(), circles.size() * sizeof(std::int32_t),
                      &ledger_);
    if (options_.stream) stream_.fill(to.streams, 0, 2 * rows * sizeof(std::int32_t));
    stream_.synchronize();
    if (spec_.diffusion) return;  // a diffusion model has no fed rows
    prepare_programs();
    if (options_.graph) capture_steps();
}

Resident::DeviceSlot& Resident::at(Slot slot) {
    MR_CHECK(slot >= 0 && slot < static_cast<Slot>(slots_.size()) &&
                 slots_[static_cast<std::size_t>(slot)].open,
             "the slot is open");
    return slots_[static_cast<std::size_t>(slot)];
}

Slot Resident::open_slot(SeqId seq, const DrawParams& params) {
    ops::check_sample_params(params.sampling);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        DeviceSlot& slot = slots_[i];
        if (slot.open || slot.row >= 0) continue;
        slot.open = true;
        slot.seq = seq;
        slot.params = params;
        slot.draws = 0;
        if (!params.is_plain()) {
            adjuster_->open(static_cast<int>(i), params.adjust, params.filter, params.logprobs,
                            &ledger_);
        }
        return static_cast<Slot>(i);
    }
    // Closed slots still occupy rows.
    compact([&](const DeviceSlot& slot) { return slot.open; });
    const bool free = std::any_of(slots_.begin(), slots_.end(),
                                  [](const DeviceSlot& slot) { return !slot.open; });
    MR_CHECK(free, "there are at most max_sequences slots");
    return open_slot(seq, params);
}

// Its row is removed in the next pass.
void Resident::close_slot(Slot slot) { at(slot).open = false; }

const Resident::DeviceSlot::Draw& Resident::draw_of(Slot index, std::uint64_t number) {
    const DeviceSlot& slot = at(index);
    MR_CHECK(number < slot.draws && slot.draws - number <= slot.where.size(),
             "the draw was launched, and not long ago");
    return slot.where[number % slot.where.size()];
}

ops::Sampled Resident::wait(Slot slot, std::uint64_t number) {
    const DeviceSlot::Draw& draw = draw_of(slot, number);
    return sampler_.wait(draw.row, draw.step);
}

bool Resident::ready(Slot slot, std::uint64_t number) {
    const DeviceSlot::Draw& draw = draw_of(slot, number);
    return sampler_.poll(draw.row, draw.step).has_value();
}

ops::DrawnLogprobs Resident::logprobs(Slot slot, std::uint64_t number) {
    MR_CHECK(at(slot).params.logprobs >= 0, "the slot keeps them");
    return adjuster_->wait(slot, number);
}

bool Resident::adjusts_rows(std::size_t first) const {
    return std::any_of(
        rows_.begin() + static_cast<std::ptrdiff_t>(first), rows_.end(),
        [&](Slot slot) { return !slots_[static_cast<std::size_t>(slot)].params.is_plain(); });
}

// Unless the step is watched, its layers are running already: the device does not wait for a
// filter.
void Resident::send_adjustments(std::size_t first, int rows) {
    adjusted_.assign(static_cast<std::size_t>(rows), {});
    for (std::size_t i = first; i < rows_.size(); ++i) {
        const DeviceSlot& slot = slots_[static_cast<std::size_t>(rows_[i])];
        if (!slot.params.is_plain()) adjusted_[i - first] = {rows_[i], slot.params.filter};
    }
    adjuster_->set_rows(adjusted_, &ledger_);
}

// Removes rows that do not stay; the last rows take their places.
template <typename Stays>
void Resident::compact(Stays&& stays) {
    for (std::size_t row = rows_.size(); row-- > 0;) {
        if (!stays(slots_[static_cast<std::size_t>(rows_[row])])) leave(static_cast<int>(row));
    }
}

void Resident::leave(int row) {
    const int last = static_cast<int>(rows_.size()) - 1;
    {
        const Meanwhile whole(ctx_.dependent_launch, false);
        cuda::launch(ctx_, dim3(1), dim3(128), 0, rows::leave_kernel, rows_of(buffers_), row, last,
                     spare_);
    }
    sampler_.copy_row(row, last);
    sampler_.clear_row(last, &ledger_);
    slots_[static_cast<std::size_t>(rows_[static_cast<std::size_t>(row)])].row = -1;
    if (row != last) {
        rows_[static_cast<std::size_t>(row)] = rows_.back();
        slots_[static_cast<std::size_t>(rows_.back())].row = row;
    }
    rows_.pop_back();
}

// Gives the slot's sequence a row; its next token is drawn for `position`.
void Resident::join(Slot index, std::int64_t position) {
    DeviceSlot& slot = at(index);
    MR_CHECK(slot.row < 0 && slot.draws == 0, "a slot joins with its first draw");
    const auto row = static_cast<std::ptrdiff_t>(rows_.size());
    slot.row = static_cast<int>(row);
    rows_.push_back(index);
    const DeviceBuffers::Arrays& to = buffers_.decode;
    const auto send = [&](std::int32_t* device, std::span<const std::int32_t> values) {
        std::int32_t* const from = staging_.take(values.size());
        std::copy(values.begin(), values.end(), from);
        stream_.to_device(device, from, values.size_bytes(), &ledger_);
    };
    const auto at = static_cast<std::int32_t>(position);
    send(to.positions + row, {&at, 1});
    // All reserved pages and their ring: a step needs nothing from the host.
    const KvCache::TablePart part = cache_->table_part(slot.seq);
    send(to.pages + row * buffers_.max_pages + part.first, part.pages);
    if (options_.stream) send_stream(slot.seq, to, static_cast<int>(row));
    if (window_ > 0 || options_.stream) {
        const KvCache::Circle circle = cache_->circle(slot.seq);
        const std::int32_t numbers[] = {
            circle.pages > 0 ? static_cast<std::int32_t>(circle.end) : kNoCircle,
            static_cast<std::int32_t>(circle.pages)};
        send(buffers_.circles + 2 * row, numbers);
        // Its first position may enter a new page already; advance_kernel handles later ones.
        const std::int64_t page = position / KvCache::kPageTokens;
        if (circle.pages > 0 && page >= circle.end) {
            const auto entries = std::int64_t{buffers_.max_pages};
            const std::int32_t again = cache_->table(
                slot.seq)[static_cast<std::size_t>(ops::table_entry(page - circle.pages, entries))];
            send(to.pages + row * entries + ops::table_entry(page, entries), {&again, 1});
        }
    }
    // A window longer than the text sees all of it.
    sampler_.set_row(slot.row, slot.params.sampling, position, slot.params.recent,
                     std::min(slot.params.window, sampler_.most_recent()), &ledger_);
}

// draws[i] draws from row i of the logits. Staging must have begun.
void Resident::join_and_draw(Tensor logits, std::span<const std::pair<Slot, std::int64_t>> draws) {
    compact([](const DeviceSlot& slot) { return slot.open; });
    const int first = static_cast<int>(rows_.size());
    for (const auto& [slot, position] : draws) join(slot, position);
    ctx_.scratch = {};
    const bool adjusted = adjusts_rows(static_cast<std::size_t>(first));
    if (adjusted) {
        send_adjustments(static_cast<std::size_t>(first), static_cast<int>(draws.size()));
        adjuster_->before(ctx_, logits);
    }
    sampler_.sample(ctx_, logits, first);
    if (adjusted) adjuster_->after(ctx_, logits, sampler_.state_from(first));
    for (const auto& [index, position] : draws) {
        DeviceSlot& slot = at(index);
        slot.where[slot.draws++ % slot.where.size()] = {slot.row, sampler_.steps(slot.row) - 1};
    }
}

void Resident::draw(Tensor logits, std::span<const Slot> slots) {
    MR_CHECK(logits.rows() >= static_cast<std::int64_t>(slots.size()), "every slot has its logits");
    std::vector<std::pair<Slot, std::int64_t>> draws;
    for (const Slot slot : slots) draws.emplace_back(slot, cache_->length(at(slot).seq));
    staging_.begin();
    join_and_draw(logits.slice_rows(0, static_cast<std::int64_t>(slots.size())), draws);
    staging_.end(stream_);
}

// ---- steps --------------------------------------------------------------------------------------

// Makes a program for every number of rows, where the model allows it.
void Resident::prepare_programs() {
    if (!options_.persistent || !options_.fuse || options_.check_nan) return;
    if (!options_.add_in_product) return;          // its GEMMs add
    if (lack_of(spec_, step_takes_layer)) return;  // then it runs kernel by kernel
    std::span<std::byte> memory = buffers_.step_programs;
    for (int rows = 1; rows <= std::min(options_.max_sequences, cuda::kStepRows); ++rows) {
        const ops::DeviceBatch batch =
            decode_batch(key_for(rows, options_.context, cuda::SampleKind::any));
        cuda::StepModel model = products_.step(batch, *cache_, buffers_.logits);
        model.keys = static_cast<int>(most_keys(spec_, options_, 1));
        if (!cuda::step_takes(model) || !ctx_.whole_device) return;
        const std::size_t bytes =
            cuda::DeviceArena::padded(cuda::StepProgram::bytes(step_shape(spec_, options_, rows)));
        programs_[static_cast<std::size_t>(rows)].emplace(model, memory.first(bytes), stream_,
                                                          &ledger_);
        memory = memory.subspan(bytes);
    }
}

const cuda::StepProgram* Resident::program(int rows) const {
    const auto at = static_cast<std::size_t>(rows);
    return at < programs_.size() && programs_[at] ? &*programs_[at] : nullptr;
}

// Grids are sized for a power of two of keys: few graphs, and few idle blocks.
Resident::StepKey Resident::key_for(int rows, std::int64_t keys, cuda::SampleKind kind) const {
    const auto power = std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(keys, 256)));
    const auto most = static_cast<std::uint64_t>(options_.context);
    return {rows, static_cast<int>(std::min(power, most)),
            samples_inside(rows) ? static_cast<int>(kind) : -1};
}

// Whether a step is captured. Without the kernels for many rows (mid_linear.cu), a product takes 8
// rows per launch, and the graphs of large steps together take gigabytes. Such a step is launched
// kernel by kernel: each reads all of its weights, which takes longer than the launch.
bool Resident::captures(int rows) const {
    constexpr int kMost = 256;
    const DType matrix = weights_of(0).o.dtype;
    return options_.graph && (rows <= kMost || !cuda::linear_small_takes(matrix, spec_.dim) ||
                              cuda::linear_records_takes(ctx_, matrix, spec_.dim));
}

void Resident::capture_steps() {
    std::vector<int> sizes;
    for (int rows = 1; rows <= options_.max_sequences; ++rows) {
        if (row_bucket(rows) == rows) sizes.push_back(rows);
    }
    if (row_bucket(options_.max_sequences) != options_.max_sequences) {
        sizes.push_back(row_bucket(options_.max_sequences));
    }
    std::erase_if(sizes, [&](int rows) { return !captures(rows); });
    for (const int rows : sizes) {
        for (std::int64_t keys = 256;; keys *= 2) {
            for (const auto kind : {cuda::SampleKind::greedy, cuda::SampleKind::any}) {
                captured(key_for(rows, keys, kind));
            }
            // Adjusted rows sample after the graph. For a single sequence this is captured at first
            // use.
            StepKey apart = key_for(rows, keys, cuda::SampleKind::any);
            apart.kind = -1;
            if (options_.max_sequences > 1) captured(apart);
            if (keys >= options_.context) break;
        }
    }
}

const Resident::Captured& Resident::captured(const StepKey& key) {
    auto found = graphs_.find(key);
    if (found == graphs_.end()) {
        Captured made;
        const Meanwhile account(ctx_.ledger, &made.ledger);
        made.graph = cuda::Graph::capture(stream_, [&] {
            launch_forward(key);
            if (key.kind >= 0) {
                launch_sample(key.rows, static_cast<cuda::SampleKind>(key.kind), false);
            }
        });
        found = graphs_.emplace(key, std::move(made)).first;
    }
    return found->second;
}

ops::DeviceBatch Resident::decode_batch(const StepKey& key) const {
    const DeviceBuffers::Arrays& a = buffers_.decode;
    ops::DeviceBatch batch;
    batch.tokens = batch.sequences = key.rows;
    batch.max_count = 1;
    batch.max_keys = key.keys;
    // A captured step is replayed with other lengths: its ledger counts no keys, and every replay
    // adds its own.
    batch.total_keys = captures(key.rows) ? 0 : keys_read(0);
    batch.ids = sampler_.next_ids();
    batch.positions = a.positions;
    batch.sequence = a.sequence;
    batch.first = a.first;
    batch.pages = a.pages;
    batch.max_pages = buffers_.max_pages;
    add_streams(batch, a, 0);
    return batch;
}

// From drawn ids to logits.
void Resident::launch_forward(const StepKey& key) {
    const Part part{decode_batch(key), 0, true};
    const Tensor x = rows_as(buffers_.x, DType::f32, 0, key.rows, spec_.dim);
    const Tensor logits = rows_as(buffers_.logits, DType::f32, 0, key.rows, spec_.vocab);
    const cuda::StepProgram* whole = program(key.rows);
    if (whole) {
        const Weights& w = weights_->weights;
        rotations_of(part);
        cuda::embedding(ctx_, x, w.embedding, w.positions, part.batch);
        ctx_.scratch = buffers_.attention_scratch;
        whole->run(ctx_, part.batch);
    } else {
        run(part);
    }
    if (!whole || !whole->has_head()) heads(logits, x, true);
    check(logits_stage(spec_), logits, 0);
}

// Draws, and advances the rows to the next position.
void Resident::launch_sample(int rows, cuda::SampleKind kind, bool adjusted) {
    const Tensor logits = rows_as(buffers_.logits, DType::f32, 0, rows, spec_.vocab);
    if (adjusted) adjuster_->before(ctx_, logits);
    cuda::sample(ctx_, logits, sampler_.state(), kind);
    if (adjusted) adjuster_->after(ctx_, logits, sampler_.state());
    cuda::launch(ctx_, dim3(static_cast<unsigned>((rows + 255) / 256)), dim3(256), 0,
                 rows::advance_kernel, rows_of(buffers_),
                 static_cast<const cuda::SampleRow*>(sampler_.state().rows), rows);
}

// Adds the work of the step's keys in every layer's attention, by the layer's mask.
void Resident::add_keys_work(Ledger& ledger, std::vector<Stage>* stages) const {
    const std::uint64_t element = cache_->layer(0).keys.dtype == DType::f32 ? 4 : 2;
    const auto work_of = [&](int layer) {
        const auto keys = static_cast<std::uint64_t>(keys_read(layer));
        return OpRecord{0, 2 * keys * static_cast<std::uint64_t>(spec_.kv_dim()) * element, 0,
                        4 * keys * static_cast<std::uint64_t>(spec_.q_dim()), 0};
    };
    for (int i = 0; i < spec_.layers; ++i) ledger.add(OpKind::attention, work_of(i));
    if (!stages) return;
    for (Stage& stage : *stages) {
        if (stage.kind != OpKind::attention) continue;
        const OpRecord work = work_of(stage.layer);
        stage.work.bytes_read += work.bytes_read;
        stage.work.flops += work.flops;
    }
}

void Resident::run_fed(const Pass& pass) {
    std::vector<char> fed(slots_.size(), 0);
    std::int64_t longest = 0;
    for (MaskKeys& seen : masks_) seen.keys = 0;
    for (std::size_t i = pass.given; i < pass.items.size(); ++i) {
        const Slot index = pass.items[i]->feed;
        const DeviceSlot& slot = at(index);
        MR_CHECK(slot.row >= 0 && slot.seq == pass.items[i]->seq &&
                     !fed[static_cast<std::size_t>(index)],
                 "a slot feeds what it drew, in every pass that feeds any");
        MR_CHECK(pass.items[i]->draw.size() == 1 && pass.items[i]->draw[0] == index &&
                     pass.items[i]->commit < 0,
                 "a row that is fed commits and draws again");
        fed[static_cast<std::size_t>(index)] = 1;
        const std::int32_t position = pass.seqs[i].position;
        const Stream& stream = cache_->stream(slot.seq);
        if (!stream) longest = std::max(longest, std::int64_t{position} + 1);
        for (MaskKeys& seen : masks_) {
            seen.keys +=
                ops::visible_keys(streamed(seen.mask, stream), position, position + 1).count();
        }
    }
    compact([&](const DeviceSlot& slot) {
        return slot.open && fed[static_cast<std::size_t>(&slot - slots_.data())];
    });
    const int active = static_cast<int>(rows_.size());
    const int rows = row_bucket(active);
    const cuda::SampleKind kind = sampler_.kind(0, active);
    const bool adjusted = adjusts_rows(0);
    StepKey key = key_for(rows, longest, kind);
    if (adjusted) key.kind = -1;
    if (watched_) {
        watched_step(key);
    } else if (captures(rows)) {
        const Captured& step = captured(key);
        step.graph.launch(stream_);
        ledger_.add(step.ledger);
        add_keys_work(ledger_, nullptr);
        if (adjusted) send_adjustments(0, rows);
        if (key.kind < 0) launch_sample(rows, kind, adjusted);
    } else {
        launch_forward(key);
        if (adjusted) send_adjustments(0, rows);
        launch_sample(rows, kind, adjusted);
    }
    sampler_.replayed(rows, &ledger_);
    for (const Slot index : rows_) {
        DeviceSlot& slot = slots_[static_cast<std::size_t>(index)];
        slot.where[slot.draws++ % slot.where.size()] = {slot.row, sampler_.steps(slot.row) - 1};
    }
    if (options_.check_nan) require_finite(buffers_.decode, 1);
}

// The same step with stamps.
void Resident::watched_step(StepKey key) {
    const cuda::SampleKind kind = sampler_.kind(0, static_cast<int>(rows_.size()));
    const bool adjusted = adjusts_rows(0);
    // Always sampled inside the graph. Adjusted sampling has its own graph.
    key.kind = static_cast<int>(kind) + (adjusted ? kAdjustedKind : 0);
    if (adjusted) send_adjustments(0, key.rows);
    const auto launch = [&] {
        launch_forward(key);
        launch_sample(key.rows, kind, adjusted);
    };
    if (!captures(key.rows)) {
        timeline_.clear_stages();
        const Meanwhile watching(ctx_.timeline, &timeline_);
        timeline_.reset(stream_);
        launch();
        return keep_stages(read_stamps());
    }
    if (!watched_step_ || watched_step_->first != key) {
        watched_step_.reset();
        timeline_.clear_stages();
        Captured made;
        const Meanwhile watching(ctx_.timeline, &timeline_);
        const Meanwhile account(ctx_.ledger, &made.ledger);
        made.graph = cuda::Graph::capture(stream_, launch);
        watched_step_.emplace(key, std::move(made));
    }
    const Captured& step = watched_step_->second;
    timeline_.reset(stream_);
    step.graph.launch(stream_);
    ledger_.add(step.ledger);
    std::vector<Stage> stages = read_stamps();
    add_keys_work(ledger_, &stages);
    keep_stages(std::move(stages));
}

}  // namespace mr::model
