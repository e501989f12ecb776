// Guesses of unknown tokens. Rows whose draw is not filtered need no logits: the head gives records
// of their tiles (ops/denoise/tile_draw.h).
#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "model/cuda/device_resident.h"
#include "model/not_finite.h"
#include "ops/embedding/embedding_cuda.h"

namespace mr::model {

static_assert(sizeof(cuda::GuessRow) == DeviceBuffers::kGuessRowWords * 8 &&
              sizeof(cuda::DeviceGuess) == DeviceBuffers::kGuessWords * 4);

// Whether the head computes only active rows, and gives records where no draw is filtered. Records
// take the place of logits, which check_nan needs to see.
bool Resident::makes_records() const {
    return options_.head_records && options_.fuse && !options_.check_nan &&
           cuda::linear_records_takes(ctx_, weights_->weights.head.dtype, spec_.dim) &&
           static_cast<std::size_t>(ops::draw_tiles(spec_.vocab)) * sizeof(ops::TileRecord) <=
               static_cast<std::size_t>(spec_.vocab) * sizeof(float);
}

// Guesses from rows x f32 [count, dim] after the layers, for buffers_.guess_rows from `first` on,
// into the same places of buffers_.guesses.
void Resident::head_guesses(Tensor x, std::int64_t first, bool filtered) {
    const std::int32_t mask = spec_.diffusion->mask;
    const auto* const rows = reinterpret_cast<const cuda::GuessRow*>(buffers_.guess_rows) + first;
    auto* const made = reinterpret_cast<cuda::DeviceGuess*>(buffers_.guesses) + first;
    if (!filtered && makes_records()) {
        auto* const records = reinterpret_cast<ops::TileRecord*>(buffers_.logits.data);
        linear(products_.head(x, cuda::RecordsOut{records, rows, mask}, Tensor{}));
        cuda::guess_by_records(ctx_, records, x.rows(), spec_.vocab, rows, made);
        return;
    }
    const Tensor logits = rows_as(buffers_.logits, DType::f32, 0, x.rows(), spec_.vocab);
    if (makes_records()) {  // of active rows only
        linear(products_.head(x, cuda::RecordsOut{nullptr, rows, mask}, logits));
    } else {
        heads(logits, x, true);
    }
    check(logits_stage(spec_), logits, first);
    if (filtered) {
        cuda::guess(ctx_, logits, rows, mask, made);
    } else {
        cuda::guess_by_tiles(ctx_, logits, rows, mask, made);
    }
}

// buffers_.guess_rows[i] is that of places[order[i]].
void Resident::send_places(std::span<const Place> places, std::span<const std::size_t> order) {
    const std::size_t bytes = places.size() * sizeof(cuda::GuessRow);
    std::int32_t* const rows = staging_.take(bytes / sizeof(std::int32_t));
    for (std::size_t i = 0; i < order.size(); ++i) {
        const Place& place = places[order[i]];
        const cuda::GuessRow row =
            cuda::guess_row(*place.sampling, *place.how, place.position, place.step, place.truth);
        std::memcpy(reinterpret_cast<std::byte*>(rows) + i * sizeof row, &row, sizeof row);
    }
    stream_.to_device(buffers_.guess_rows, rows, bytes, &ledger_);
}

const std::vector<cuda::DeviceGuess>& Resident::read_guesses(std::size_t count) {
    host_guesses_.resize(count);
    stream_.to_host(host_guesses_.data(), buffers_.guesses, count * sizeof(cuda::DeviceGuess),
                    &ledger_);
    return host_guesses_;
}

// Guesses for the rows in buffers_.pass.rows, of which the first `plain` are not filtered.
void Resident::launch_guesses(std::int64_t plain, std::int64_t count) {
    if (count == 0) return;
    const Tensor last = rows_as(buffers_.last, DType::f32, 0, count, spec_.dim);
    cuda::gather_rows(ctx_, last, buffers_.x, buffers_.pass.rows, count);
    if (plain > 0) head_guesses(last.slice_rows(0, plain), 0, false);
    if (plain < count) head_guesses(last.slice_rows(plain, count - plain), plain, true);
}

// Whether all rows of the pass are one part in the decode form, so that it can be captured.
bool Resident::guesses_in_one_launch(const Pass& pass) const {
    if (!options_.graph || options_.check_nan || options_.stream || watched_) return false;
    if (pass.given != pass.items.size() || pass.tokens > decode_rows(options_)) return false;
    return std::ranges::all_of(pass.items, [&](const BatchItem* item) {
        return item->form == Form::decode && item->mask == pass.items.front()->mask;
    });
}

// Runs the pass as a graph if its shape was seen before. The host's arrays have been sent.
void Resident::run_captured(const Pass& pass, const Part& part, std::int64_t plain,
                            std::int64_t count) {
    Part bounded = part;
    bounded.batch.max_keys = key_for(1, part.batch.max_keys, cuda::SampleKind::any).keys;
    bounded.batch.total_keys = 0;  // added below
    const GuessKey key{part.batch.tokens,
                       part.batch.sequences,
                       part.batch.max_count,
                       bounded.batch.max_keys,
                       part.mask ? part.mask->block : -1,
                       plain,
                       count};
    const auto launch = [&] {
        run(bounded);
        launch_guesses(plain, count);
    };
    Captured* const seen = guess_passes_.find(key);
    if (!seen) {
        if (guess_passes_.full()) stream_.synchronize();  // an evicted graph may still run
        guess_passes_.put(key, {});
        launch();
    } else {
        if (!seen->graph) {
            const Meanwhile account(ctx_.ledger, &seen->ledger);
            seen->graph = cuda::Graph::capture(stream_, launch);
        }
        seen->graph.launch(stream_);
        ledger_.add(seen->ledger);
        ++captured_passes_;
    }
    const std::uint64_t element = cache_->layer(0).keys.dtype == DType::f32 ? 4 : 2;
    OpRecord keys;
    for (const ops::BatchSeq& seq : pass.seqs) {
        // NOLINTNEXTLINE(bugprone-misplaced-widening-cast): positions of a context fit into an int
        const auto read = static_cast<std::uint64_t>(seq.position + seq.count);
        keys.bytes_read += 2 * read * static_cast<std::uint64_t>(spec_.kv_dim()) * element;
        keys.flops += 4 * read * static_cast<std::uint64_t>(seq.count) *
                      static_cast<std::uint64_t>(spec_.q_dim());
    }
    for (int i = 0; i < spec_.layers; ++i) ledger_.add(OpKind::attention, keys);
}

// Rows whose draw is not filtered come first. They and the others are separate GEMMs, and no bit of
// a row depends on the number of rows in one.
void Resident::run(const Pass& pass, std::span<const Place> places, std::span<ops::Guess> out) {
    std::vector<std::size_t> order(places.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto filtered = std::stable_partition(
        order.begin(), order.end(), [&](std::size_t i) { return !is_filtered(places[i]); });
    const std::int64_t plain = filtered - order.begin(), count = std::ssize(order);
    stamped([&] {
        staging_.begin();
        const bool whole = guesses_in_one_launch(pass);
        Part part;
        std::vector<std::int64_t> row_of;
        if (whole) {
            fill_.open = false;  // its pages are overwritten
            std::vector<std::size_t> items(pass.given);
            std::iota(items.begin(), items.end(), std::size_t{0});
            part.mask = pass.items.front()->mask;
            part.batch = upload(pass, items, 0, 0, buffers_.pass.first, true);
            std::int64_t row = 0;
            for (const ops::BatchSeq& seq : pass.seqs) {
                row_of.push_back(row);
                row += seq.count;
            }
        } else {
            row_of = run_parts(pass);
        }
        if (count > 0) {
            std::vector<std::int32_t> asked;  // the row of each place
            for (std::size_t i = 0; i < pass.given; ++i) {
                const BatchItem& item = *pass.items[i];
                for (std::int64_t r = 0; r < logit_rows(item); ++r) {
                    asked.push_back(static_cast<std::int32_t>(
                        row_of[i] + logit_token(item, pass.seqs[i].count, r)));
                }
            }
            std::int32_t* const rows = staging_.take(order.size());
            for (std::size_t i = 0; i < order.size(); ++i) rows[i] = asked[order[i]];
            stream_.to_device(buffers_.pass.rows, rows, order.size() * sizeof *rows, &ledger_);
            send_places(places, order);
        }
        if (whole) {
            run_captured(pass, part, plain, count);
        } else {
            launch_guesses(plain, count);
        }
        staging_.end(stream_);
    });
    if (options_.check_nan) require_finite(buffers_.pass, 0);
    if (count == 0) return;
    const std::vector<cuda::DeviceGuess>& made = read_guesses(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
        ops::Guess& guess = out[order[i]] = made[i].guess;
        if (made[i].flags & cuda::kSampleNone) guess.id = ops::kGuessNone;
        if (made[i].flags & cuda::kSampleNan) guess.id = ops::kGuessNan;
    }
}

}  // namespace mr::model
