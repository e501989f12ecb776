// What passes say of unknown tokens. Rows whose draw is not filtered need no logits: the head gives
// records of their tiles (ops/denoise/tile_draw.h).
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

// Whether the head gives records. They lie where logits would; a check wants to see those.
bool Resident::makes_records() const {
    return options_.head_records && options_.fuse && !options_.check_nan &&
           cuda::linear_records_takes(ctx_, weights_->weights.head.dtype, spec_.dim) &&
           static_cast<std::size_t>(ops::draw_tiles(spec_.vocab)) * sizeof(ops::TileRecord) <=
               static_cast<std::size_t>(spec_.vocab) * sizeof(float);
}

// Guesses of rows x f32 [count, dim] behind the layers: those of buffers_.guess_rows from `first`
// on, to the same places of buffers_.guesses.
void Resident::head_guesses(Tensor x, std::int64_t first, bool filtered) {
    const std::int32_t mask = spec_.diffusion->mask;
    const auto* const rows = reinterpret_cast<const cuda::GuessRow*>(buffers_.guess_rows) + first;
    auto* const made = reinterpret_cast<cuda::DeviceGuess*>(buffers_.guesses) + first;
    if (!filtered && makes_records()) {
        auto* const records = reinterpret_cast<ops::TileRecord*>(buffers_.logits.data);
        linear(products_.head(x, cuda::RecordsOut{records, rows, mask}));
        cuda::guess_by_records(ctx_, records, x.rows(), spec_.vocab, rows, made);
        return;
    }
    const Tensor logits = rows_as(buffers_.logits, DType::f32, 0, x.rows(), spec_.vocab);
    heads(logits, x, true);
    check(logits_stage(spec_), logits, first);
    if (filtered) {
        cuda::guess(ctx_, logits, rows, mask, made);
    } else {
        cuda::guess_by_tiles(ctx_, logits, rows, mask, made);
    }
}

// buffers_.guess_rows[i] is of places[order[i]].
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

// Rows whose draw is not filtered come first: those and the others are a product each, and no bit
// of a row depends on how many share it.
void Resident::run(const Pass& pass, std::span<const Place> places, std::span<ops::Guess> out) {
    std::vector<std::size_t> order(places.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto filtered = std::stable_partition(
        order.begin(), order.end(), [&](std::size_t i) { return !is_filtered(places[i]); });
    const std::int64_t plain = filtered - order.begin(), count = std::ssize(order);
    stamped([&] {
        staging_.begin();
        const std::vector<std::int64_t> row_of = run_parts(pass);
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
            const Tensor last = rows_as(buffers_.last, DType::f32, 0, count, spec_.dim);
            cuda::gather_rows(ctx_, last, buffers_.x, buffers_.pass.rows, count);
            if (plain > 0) head_guesses(last.slice_rows(0, plain), 0, false);
            if (plain < count) head_guesses(last.slice_rows(plain, count - plain), plain, true);
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
