// A pass of given tokens: its items in parts of one form and mask each, then the rows with logits.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "model/cuda/device_resident.h"
#include "model/not_finite.h"
#include "ops/embedding/embedding_cuda.h"
#include "ops/rope/rope_cuda.h"

namespace mr::model {

// Uploads the arrays of some items, starting at row `first_row` and sequence `first_seq`.
ops::DeviceBatch Resident::upload(const Pass& pass, std::span<const std::size_t> items,
                                  std::int64_t first_row, int first_seq, std::int32_t* first,
                                  bool few) {
    const DeviceBuffers::Arrays& to = buffers_.pass;
    ops::DeviceBatch batch;
    batch.sequences = static_cast<int>(items.size());
    batch.max_count = 0;
    batch.max_pages = buffers_.max_pages;
    std::size_t tokens = 0;
    for (const std::size_t i : items) {
        const ops::BatchSeq& seq = pass.seqs[i];
        tokens += static_cast<std::size_t>(seq.count);
        batch.max_count = std::max(batch.max_count, seq.count);
        const bool streams = few && cache_->stream(pass.items[i]->seq);
        batch.max_keys = std::max(batch.max_keys, streams ? 1 : seq.position + seq.count);
    }
    const auto send = [&](std::int32_t* device, std::size_t count, auto&& fill) {
        std::int32_t* const from = staging_.take(count);
        fill(from);
        stream_.to_device(device, from, count * sizeof *from, &ledger_);
    };
    batch.tokens = static_cast<int>(tokens);
    batch.ids = to.ids + first_row;
    batch.positions = to.positions + first_row;
    batch.sequence = to.sequence + first_row;
    batch.first = first;
    batch.pages = to.pages + static_cast<std::ptrdiff_t>(first_seq) * buffers_.max_pages;
    send(to.ids + first_row, tokens, [&](std::int32_t* at) {
        for (const std::size_t i : items) {
            at = std::copy(pass.items[i]->tokens.begin(), pass.items[i]->tokens.end(), at);
        }
    });
    send(to.positions + first_row, tokens, [&](std::int32_t* at) {
        for (const std::size_t i : items) {
            for (std::int32_t j = 0; j < pass.seqs[i].count; ++j) {
                *at++ = pass.seqs[i].position + j;
            }
        }
    });
    send(to.sequence + first_row, tokens, [&](std::int32_t* at) {
        for (std::size_t s = 0; s < items.size(); ++s) {
            at = std::fill_n(at, pass.seqs[items[s]].count, static_cast<std::int32_t>(s));
        }
    });
    send(first, items.size() + 1, [&](std::int32_t* at) {
        std::int32_t row = 0;
        for (const std::size_t i : items) {
            *at++ = row;
            row += pass.seqs[i].count;
        }
        *at = row;
    });
    // All tables in one copy: one copy per sequence takes longer than the unused entries do.
    const auto entries = static_cast<std::size_t>(buffers_.max_pages);
    send(to.pages + std::ptrdiff_t{first_seq} * buffers_.max_pages, items.size() * entries,
         [&](std::int32_t* at) {
             std::fill_n(at, items.size() * entries, 0);
             for (const std::size_t i : items) {
                 const ops::BatchSeq& seq = pass.seqs[i];
                 const auto [entry, pages] =
                     cache_->table_part(pass.items[i]->seq, seq.position + seq.count);
                 std::copy(pages.begin(), pages.end(), at + entry);
                 at += entries;
             }
         });
    for (std::size_t s = 0; s < items.size() && options_.stream; ++s) {
        send_stream(pass.items[items[s]]->seq, to, first_seq + static_cast<int>(s));
    }
    add_streams(batch, to, first_seq);
    return batch;
}

void Resident::send_stream(SeqId seq, const DeviceBuffers::Arrays& to, int row) {
    const Stream& stream = cache_->stream(seq);
    const auto count = static_cast<std::size_t>(KvCache::pages_for(stream.sinks));
    std::int32_t* const from = staging_.take(2 + count);
    from[0] = stream.sinks;
    from[1] = stream.window;
    stream_.to_device(to.streams + 2 * std::ptrdiff_t{row}, from, 2 * sizeof *from, &ledger_);
    if (count == 0) return;
    // Sink pages that are still in the table have the entries of their numbers.
    const std::span<const std::int32_t> front = cache_->front(seq), table = cache_->table(seq);
    for (std::size_t i = 0; i < count; ++i) from[2 + i] = i < front.size() ? front[i] : table[i];
    stream_.to_device(to.fronts + std::ptrdiff_t{row} * buffers_.max_fronts, from + 2,
                      count * sizeof *from, &ledger_);
}

void Resident::add_streams(ops::DeviceBatch& batch, const DeviceBuffers::Arrays& from,
                           int first) const {
    if (!options_.stream) return;
    batch.streams = from.streams + 2 * std::ptrdiff_t{first};
    if (buffers_.max_fronts > 0) {
        batch.fronts = from.fronts + std::ptrdiff_t{first} * buffers_.max_fronts;
    }
    batch.max_fronts = buffers_.max_fronts;
    batch.max_sinks = options_.stream.sinks;
    batch.max_window = options_.stream.window;
}

void Resident::rotations_of(const Part& part) {
    if (!products_.rope_by_row() || !buffers_.rope) return;
    const std::int64_t rows = part.batch.tokens;
    cuda::RopeRows rope;
    rope.rows = products_.rope(part.first, rows);
    rope.inv_freq = buffers_.frequencies;
    rope.magnitude = rope_magnitude_;
    const SinkViews& views = products_.views();
    for (std::size_t i = 0; i < std::max<std::size_t>(views.views.size(), 1); ++i) {
        if (!views.views.empty()) {
            rope.sinks = products_.rope_sinks(static_cast<int>(i), part.first, rows);
            rope.window = views.views[i].window;
        }
        cuda::rope_rows(ctx_, rope, part.batch);
    }
}

// Runs the layers; returns the first row of each item.
std::vector<std::int64_t> Resident::run_parts(const Pass& pass) {
    fill_.open = false;  // its pages are overwritten
    // Parts of one form and mask each. Items in the decode form go in groups of as many rows as
    // attention's scratch was planned for. Neighbours with the same mask go together, and in the
    // prompt form those with the same stream.
    std::vector<std::int64_t> row_of(pass.given);
    std::int64_t row = 0;
    int first_seq = 0;
    std::int32_t* first = buffers_.pass.first;
    std::vector<std::size_t> items;
    const auto run_part = [&](bool few) {
        if (items.empty()) return;
        Part part;
        part.first = row;
        part.few = few;
        part.mask = pass.items[items.front()]->mask;
        part.batch = upload(pass, items, row, first_seq, first, few);
        if (!few) part.stream = cache_->stream(pass.items[items.front()]->seq);
        for (const std::size_t i : items) {
            row_of[i] = row;
            row += pass.seqs[i].count;
        }
        first_seq += part.batch.sequences;
        first += items.size() + 1;
        run(part);
        items.clear();
    };
    for (const Form form : {Form::decode, Form::prompt}) {
        std::int64_t rows = 0;
        for (std::size_t i = 0; i < pass.given; ++i) {
            if (pass.items[i]->form != form) continue;
            const bool full =
                form == Form::decode && rows + pass.seqs[i].count > decode_rows(options_);
            const auto differs = [&](const BatchItem& first, const BatchItem& item) {
                return first.mask != item.mask ||
                       (form == Form::prompt &&
                        cache_->stream(first.seq) != cache_->stream(item.seq));
            };
            if (full || (!items.empty() && differs(*pass.items[items.front()], *pass.items[i]))) {
                run_part(form == Form::decode);
                rows = 0;
            }
            items.push_back(i);
            rows += pass.seqs[i].count;
        }
        run_part(form == Form::decode);
    }
    return row_of;
}

Tensor Resident::run_given(const Pass& pass) {
    staging_.begin();
    const std::vector<std::int64_t> row_of = run_parts(pass);
    // Rows whose logits are read, in the order of the items; then the rows that slots draw from.
    std::int32_t* const rows =
        staging_.take(static_cast<std::size_t>(std::max(options_.max_logits, 1)));
    std::int64_t count = 0, read = 0;
    // The head has the item's form if all its logits are wanted; logits of only the last token are
    // computed like those of a fed token.
    std::vector<std::pair<std::int64_t, bool>> runs;  // runs of rows: how many, and the form
    const auto add = [&](std::size_t i, std::int64_t wanted, bool few) {
        const bool some = pass.items[i]->logits == BatchItem::Logits::some;
        for (std::int64_t r = 0; r < wanted; ++r) {
            const std::int64_t token = some ? logit_token(*pass.items[i], pass.seqs[i].count, r)
                                            : pass.seqs[i].count - wanted + r;
            rows[count++] = static_cast<std::int32_t>(row_of[i] + token);
        }
        if (runs.empty() || runs.back().second != few) runs.emplace_back(0, few);
        runs.back().first += wanted;
    };
    std::vector<std::pair<Slot, std::int64_t>> draws;  // slot and position to draw for
    for (std::size_t i = 0; i < pass.given; ++i) {
        const BatchItem& item = *pass.items[i];
        const bool all = item.logits == BatchItem::Logits::all;
        if (item.logits == BatchItem::Logits::none) continue;
        add(i, logit_rows(item), !(all && item.form == Form::prompt));
    }
    read = count;
    for (std::size_t i = 0; i < pass.given; ++i) {
        for (const Slot slot : pass.items[i]->draw) {
            add(i, 1, true);
            draws.emplace_back(slot, draw_position(pass, i));
        }
    }
    const Tensor logits = rows_as(buffers_.logits, DType::f32, 0, count, spec_.vocab);
    if (count > 0) {
        stream_.to_device(buffers_.pass.rows, rows, static_cast<std::size_t>(count) * sizeof *rows,
                          &ledger_);
        const Tensor last = rows_as(buffers_.last, DType::f32, 0, count, spec_.dim);
        cuda::gather_rows(ctx_, last, buffers_.x, buffers_.pass.rows, count);
        std::int64_t from = 0;
        for (const auto& [some, few] : runs) {
            heads(logits.slice_rows(from, some), last.slice_rows(from, some), few);
            from += some;
        }
        check(logits_stage(spec_), logits, 0);
    }
    if (!draws.empty()) {
        join_and_draw(logits.slice_rows(read, static_cast<std::int64_t>(draws.size())), draws);
    }
    staging_.end(stream_);
    return rows_as(buffers_.logits, DType::f32, 0, read, spec_.vocab);
}

}  // namespace mr::model
