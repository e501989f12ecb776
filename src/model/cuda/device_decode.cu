// Decoding: the step from a drawn id to the next one, captured and replayed, and its account.
#include <algorithm>
#include <bit>
#include <string>

#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "model/cuda/device_resident.h"
#include "model/not_finite.h"
#include "ops/embedding/embedding_cuda.h"

namespace mr::model {
namespace {

__global__ void advance_kernel(std::int32_t* positions, int rows) {
    cuda::wait_for_previous();
    cuda::let_next_start();
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < rows) ++positions[i];
}

}  // namespace

void Resident::begin(std::span<const DecodeRow> rows, Tensor logits) {
    MR_CHECK(logits.rows() == static_cast<std::int64_t>(rows.size()), "every row has its logits");
    MR_CHECK(rows.size() <= first_draw_.size(), "there are at most max_sequences rows");
    staged_.synchronize();
    auto* staging = reinterpret_cast<std::int32_t*>(staging_.data());
    const DeviceBuffers::Arrays& to = buffers_.decode;
    const auto send = [&](std::int32_t* device, std::size_t count) {
        stream_.to_device(device, staging, count * sizeof *staging, &ledger_);
        staging += count;
    };
    decode_rows_ = static_cast<int>(rows.size());
    decode_keys_ = 0;
    decode_lengths_.clear();
    std::vector<std::int64_t> lengths;
    for (const DecodeRow& row : rows) {
        const std::int64_t length = cache_->length(row.seq);
        lengths.push_back(length);
        // All the pages it will need: a step asks the host for nothing.
        cache_->reserve(row.seq, std::min(options_.context, length + row.most));
        decode_keys_ = std::max(decode_keys_, length + 1);
        decode_lengths_.push_back(length + 1);
    }
    for (std::size_t r = 0; r < rows.size(); ++r)
        staging[r] = static_cast<std::int32_t>(lengths[r]);
    send(to.positions, rows.size());
    for (std::size_t r = 0; r < rows.size(); ++r) staging[r] = static_cast<std::int32_t>(r);
    send(to.sequence, rows.size());
    for (std::size_t r = 0; r <= rows.size(); ++r) staging[r] = static_cast<std::int32_t>(r);
    send(to.first, rows.size() + 1);
    for (std::size_t r = 0; r < rows.size(); ++r) {
        const std::span<const std::int32_t> pages = cache_->pages(rows[r].seq);
        std::copy(pages.begin(), pages.end(), staging);
        send(to.pages + r * static_cast<std::size_t>(buffers_.max_pages), pages.size());
    }
    stream_.record(staged_);
    for (std::size_t r = 0; r < rows.size(); ++r) {
        // The index of the token that is drawn: one past what is in the cache. A longer window
        // than the sampler's is one over the whole text.
        sampler_.set_row(static_cast<int>(r), rows[r].params, lengths[r], rows[r].recent,
                         std::min(rows[r].window, sampler_.most_recent()), &ledger_);
        first_draw_[r] = sampler_.steps(static_cast<int>(r));
    }
    for (int r = decode_rows_; r < sampler_.max_rows(); ++r) sampler_.clear_row(r, &ledger_);
    ctx_.scratch = {};
    sampler_.sample(ctx_, logits);
}

// A program for every number of rows, where there can be one.
void Resident::prepare_steps() {
    if (!options_.persistent || !options_.fuse || options_.check_nan || spec_.qk_norm) return;
    std::span<std::byte> memory = buffers_.step_programs;
    for (int rows = 1; rows <= std::min(options_.max_sequences, cuda::kStepRows); ++rows) {
        const ops::DeviceBatch batch = decode_batch(rows);
        cuda::StepModel model = products_.step(batch, *cache_, buffers_.logits);
        model.keys = static_cast<int>(options_.context);
        if (!cuda::step_takes(model) || !step_turn_.take()) return;
        const std::size_t bytes =
            cuda::DeviceArena::padded(cuda::StepProgram::bytes(step_shape(spec_, options_, rows)));
        programs_[static_cast<std::size_t>(rows)].emplace(model, memory.first(bytes), stream_,
                                                          &ledger_);
        memory = memory.subspan(bytes);
    }
}

const cuda::StepProgram* Resident::program() const {
    const auto rows = static_cast<std::size_t>(decode_rows_);
    return rows < programs_.size() && programs_[rows] ? &*programs_[rows] : nullptr;
}

// The keys that the next step reads in a layer, over all rows.
std::int64_t Resident::decode_keys_read() const {
    std::int64_t keys = 0;
    for (const std::int64_t length : decode_lengths_) {
        keys +=
            spec_.mask.window > 0
                ? std::min<std::int64_t>(length, std::int64_t{spec_.mask.window} + spec_.mask.sinks)
                : length;
    }
    return keys;
}
// What they are worth in a layer's attention.
OpRecord Resident::keys_work() const {
    const auto keys = static_cast<std::uint64_t>(decode_keys_read());
    const std::uint64_t element = cache_->layer(0).keys.dtype == DType::f32 ? 4 : 2;
    return {0, 2 * keys * static_cast<std::uint64_t>(spec_.kv_dim()) * element, 0,
            4 * keys * static_cast<std::uint64_t>(spec_.q_dim()), 0};
}
void Resident::stepped() {
    ++decode_keys_;
    for (std::int64_t& length : decode_lengths_) ++length;
    if (options_.check_nan) require_finite(buffers_.decode, 1);
}

ops::DeviceBatch Resident::decode_batch(int rows) const {
    const DeviceBuffers::Arrays& a = buffers_.decode;
    ops::DeviceBatch batch;
    batch.tokens = batch.sequences = rows;
    batch.max_count = 1;
    // Grids for a power of two of keys: few graphs, and few blocks with nothing to do.
    const auto keys =
        std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(decode_keys_, 256)));
    batch.max_keys = static_cast<int>(
        std::min<std::uint64_t>(keys, static_cast<std::uint64_t>(options_.context)));
    // A captured step is replayed with other lengths: its account has no keys, and every replay
    // adds its own.
    batch.total_keys = options_.graph ? 0 : decode_keys_read();
    batch.ids = sampler_.next_ids();
    batch.positions = a.positions;
    batch.sequence = a.sequence;
    batch.first = a.first;
    batch.pages = a.pages;
    batch.max_pages = buffers_.max_pages;
    return batch;
}

// Everything a step is: forward from the drawn ids, the next draw, and on to the next position.
void Resident::launch_step() {
    const Part part{decode_batch(decode_rows_), 0, true};
    const Tensor x = rows_as(buffers_.x, DType::f32, 0, decode_rows_, spec_.dim);
    const Tensor logits = rows_as(buffers_.logits, DType::f32, 0, decode_rows_, spec_.vocab);
    const cuda::StepProgram* whole = program();
    if (whole) {
        const Weights& w = weights_->weights;
        cuda::embedding(ctx_, x, w.embedding, w.positions, part.batch);
        ctx_.scratch = buffers_.attention_scratch;
        whole->run(ctx_, part.batch);
    } else {
        run(part);
    }
    if (!whole || !whole->has_head()) heads(logits, x, true);
    check(logits_stage(spec_), logits, 0);
    sampler_.sample(ctx_, logits);
    cuda::launch(ctx_, dim3(static_cast<unsigned>((decode_rows_ + 255) / 256)), dim3(256), 0,
                 advance_kernel, buffers_.decode.positions, decode_rows_);
}

void Resident::step() {
    MR_CHECK(decode_rows_ > 0, "begin() came first");
    if (watched_) {
        const std::vector<cuda::Stage> stages = measured_step();
        stages_.insert(stages_.end(), stages.begin(), stages.end());
        return;
    }
    if (!options_.graph) {
        launch_step();
    } else {
        const ops::DeviceBatch batch = decode_batch(decode_rows_);
        const GraphKey key{decode_rows_, batch.max_keys, static_cast<int>(sampler_.kind())};
        auto found = graphs_.find(key);
        if (found == graphs_.end()) {
            Captured captured;
            const Meanwhile account(ctx_.ledger, &captured.ledger);
            captured.graph = cuda::Graph::capture(stream_, [&] { launch_step(); });
            found = graphs_.emplace(key, std::move(captured)).first;
        }
        found->second.graph.launch(stream_);
        sampler_.replayed(decode_rows_, &ledger_);
        ledger_.add(found->second.ledger);
        for (int i = 0; i < spec_.layers; ++i) ledger_.add(OpKind::attention, keys_work());
    }
    stepped();
}

std::vector<cuda::Stage> Resident::measured_step() {
    std::vector<cuda::Stage> stages;
    if (options_.graph) {
        const ops::DeviceBatch batch = decode_batch(decode_rows_);
        const GraphKey key{decode_rows_, batch.max_keys, static_cast<int>(sampler_.kind())};
        if (!watched_step_ || watched_step_->first != key) {
            watched_step_.reset();
            timeline_.clear_stages();
            Captured made;
            const Meanwhile watching(ctx_.timeline, &timeline_);
            const Meanwhile account(ctx_.ledger, &made.ledger);
            made.graph = cuda::Graph::capture(stream_, [&] { launch_step(); });
            watched_step_.emplace(key, std::move(made));
        }
        const Captured& step = watched_step_->second;
        timeline_.reset(stream_);
        step.graph.launch(stream_);
        sampler_.replayed(decode_rows_, &ledger_);
        ledger_.add(step.ledger);
        stages = read_stamps();
        const OpRecord keys = keys_work();
        for (cuda::Stage& stage : stages) {
            if (stage.kind != OpKind::attention) continue;
            ledger_.add(OpKind::attention, keys);
            stage.work.bytes_read += keys.bytes_read;
            stage.work.flops += keys.flops;
        }
    } else {
        timeline_.clear_stages();
        const Meanwhile watching(ctx_.timeline, &timeline_);
        timeline_.reset(stream_);
        launch_step();
        stages = read_stamps();
    }
    stepped();
    return stages;
}

}  // namespace mr::model
