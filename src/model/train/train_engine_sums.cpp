// Gradients after a pass: the tree over grains, and the ranks' shards of the optimizer's
// state.
#include <algorithm>
#include <vector>

#include "core/error.h"
#include "model/train/train_engine.h"

namespace mr::model {

std::vector<TrainEngine::Share> TrainEngine::shares_of(const std::vector<ParamRange>& ranges,
                                                       const std::vector<comm::Shards>& shards,
                                                       int rank) {
    std::vector<Share> out;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        const std::int64_t begin = ranges[i].begin + shards[i].begin(rank);
        const std::int64_t end = ranges[i].begin + shards[i].end(rank);
        if (begin < end) out.push_back({begin, end, at});
        at += end - begin;
    }
    return out;
}

// The hooks of a pass; `last`: it is the last one of the step that adds gradients.
PassHooks TrainEngine::hooks(bool last) {
    PassHooks out;
    if (shares_grads()) {
        out.enter = [this, last](int unit, bool backward) {
            if (param_shards_) param_shards_->enter(unit, backward, !last);
            if (backward) grad_shards_->enter(unit);
        };
        out.done = [this](int unit) { grad_shards_->leave(unit); };
        return out;
    }
    const bool alone = options_.grains == 1 && !options_.exchange;
    if (last && !alone) out.done = [this](int unit) { complete(unit); };
    return out;
}

// Ends a grain that others follow: together with the sum of as many grains before it, its sum moves
// up a level. Older grains are the left operand.
void TrainEngine::close_grain() {
    std::size_t level = 0;
    for (; levels_[level] != kNone; ++level) {
        ops_->sum_of(leaf(), grads_[levels_[level]], leaf());
        levels_[level] = kNone;
    }
    levels_[level] = leaf_;
    for (leaf_ = 0; std::ranges::find(levels_, leaf_) != levels_.end();) ++leaf_;
    ops_->zero(leaf());
    ++grain_;
}

// Completes a unit's gradients in the last grain: adds the sums of all levels and starts the sum
// over ranks.
void TrainEngine::complete(int unit) {
    const auto finish = [&](std::int64_t begin, std::int64_t end, const comm::Shards& cut) {
        const Tensor to = part(leaf(), begin, end);
        for (const std::size_t level : levels_) {
            ops_->sum_of(to, part(grads_[level], begin, end), to);
        }
        if (options_.exchange) options_.exchange->add_up(to.f32(), cut, options_.zero == 0);
    };
    // The last stage's copy of a tied table is the head.
    const bool last = unit == unit_count(layout_.spec) - 1, table = last && has_table_copy();
    // The head's gradient of a tied table, with which the first range begins, is complete before
    // all others if the tokens' gradient is separate.
    const std::int64_t head =
        tokens_at_ >= 0 ? head_rows(layout_.spec) * layout_.spec.dim : std::int64_t{0};
    if (last && head > 0) finish(0, head, shards_[0].first(head));
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
        if (ranges_[i].unit != unit && !(table && ranges_[i].unit == 0)) continue;
        const std::int64_t done = i == 0 ? head : 0;
        if (ranges_[i].begin + done == ranges_[i].end) continue;
        finish(ranges_[i].begin + done, ranges_[i].end, shards_[i].behind(done));
    }
    if (unit == 0 && tokens_at_ >= 0) {  // cut like the table
        finish(tokens_at_, tokens_at_ + tokens_count_, shards_[0].first(tokens_count_));
    }
}

// Losses of all ranks' grains, in the order of grains: a rank has adjacent ones, or every
// ranks()th.
std::vector<double> TrainEngine::gather_losses(const std::vector<double>& mine) {
    std::vector<double> all = options_.exchange->gather(mine);
    if (!shares_grads()) return all;
    std::vector<double> out(all.size());
    const auto ranks = static_cast<std::size_t>(options_.ranks());
    for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = all[i % ranks * mine.size() + i / ranks];
    }
    return out;
}

// Adds the tokens' gradient of a tied table to the head's.
void TrainEngine::add_tokens() {
    const Tensor tokens = part(leaf(), tokens_at_, tokens_at_ + tokens_count_);
    MR_CHECK(grad_views_[leaf_].head.data == leaf().data, "the table comes first");
    for (const Share& own : own_) {
        const std::int64_t end = std::min(own.end, tokens_count_);
        if (own.begin >= end) continue;
        const Tensor table = part(leaf(), own.begin, end);
        ops_->sum_of(table, table, part(tokens, own.begin, end));
    }
    ops_->zero(tokens);
}

std::int64_t TrainEngine::block_at(std::int64_t element) const {
    return std::ranges::lower_bound(host_cuts_, element) - host_cuts_.begin();
}

// The sum of squares of all gradients, on the device. In a stage every block belongs to one
// replica, or all replicas have all.
double* TrainEngine::add_squares(Tensor grads) {
    double* const norm = sums_ + options_.grains;
    std::int64_t here = 0;
    for (const Share& own : own_) {
        const std::int64_t first = block_at(own.begin), count = block_at(own.end) - first;
        if (!shares_grads()) {
            ops_->block_squares(squares_ + first, grads, cuts_ + first, count);
        }
        here += count;
    }
    if (shares_grads()) ops_->block_squares(squares_, grads, cuts_, here);
    if (options_.stage() > 0) {
        std::vector<double> all(static_cast<std::size_t>(blocks_));
        ops_->read(all.data(), squares_, all.size() * sizeof(double));
        all = gather_squares(all);
        ops_->write(squares_, all.data(), all.size() * sizeof(double));
    }
    if (options_.pipeline.piped()) {
        add_squares_of_stages(norm);
    } else {
        ops_->sum_parts(norm, squares_, blocks_);
    }
    return norm;
}

// The squares of all blocks, in order. `made` has this rank's, at their places or, where ranks
// shard gradients, end to end.
std::vector<double> TrainEngine::gather_squares(const std::vector<double>& made) {
    std::vector<std::vector<std::int64_t>> blocks_of;
    std::size_t most = 0;
    for (int rank = 0; rank < options_.ranks(); ++rank) {
        std::vector<std::int64_t>& blocks = blocks_of.emplace_back();
        for (const Share& share : shares_of(ranges_, shards_, rank)) {
            for (std::int64_t i = block_at(share.begin); i < block_at(share.end); ++i) {
                blocks.push_back(i);
            }
        }
        most = std::max(most, blocks.size());
    }
    // Every rank passes equally many numbers: those of its blocks, then zeros.
    std::vector<double> mine(most);
    const auto& own = blocks_of[static_cast<std::size_t>(options_.rank())];
    for (std::size_t i = 0; i < own.size(); ++i) {
        mine[i] = made[shares_grads() ? i : static_cast<std::size_t>(own[i])];
    }
    const std::vector<double> gathered = options_.exchange->gather(mine);
    std::vector<double> all(static_cast<std::size_t>(blocks_));
    for (std::size_t rank = 0; rank < blocks_of.size(); ++rank) {
        for (std::size_t i = 0; i < blocks_of[rank].size(); ++i) {
            all[static_cast<std::size_t>(blocks_of[rank][i])] = gathered[rank * most + i];
        }
    }
    return all;
}

// The index of this stage's element in the whole.
std::int64_t TrainEngine::whole_of(std::int64_t element) const {
    const auto behind = std::ranges::upper_bound(ranges_, element, {}, &ParamRange::begin);
    const ParamRange& range = *std::prev(behind);
    return range.whole + (element - range.begin);
}

// The optimizer's step over this rank's shares; then all ranks get all parameters, or, where they
// shard them, all norms and biases.
void TrainEngine::step_shares(const ops::AdamW& with, Tensor grads, const double* norm) {
    ops::AdamW step = with;
    for (const Share& own : own_) {
        const std::int64_t count = own.end - own.begin;
        const std::int64_t at = shares_grads() ? own.at : own.begin;
        const std::int64_t to = param_at(own.begin);
        // A share has only matrices, or only elements without decay and copy.
        const bool matrices = own.begin < layout_.decayed;
        const bool only_copy = slim_ && matrices;
        step.first = whole_of(own.begin);
        step.bf16_masters = with.bf16_masters && matrices;
        ops_->adamw(step, only_copy ? part(params_, 0, 0) : part(params_, to, to + count),
                    copy_ && matrices ? part(copy_, to, to + count) : Tensor(),
                    part(grads, at, at + count), part(m_, own.at, own.at + count),
                    part(v_, own.at, own.at + count), matrices ? count : 0, norm);
    }
    if (param_shards_) param_shards_->forget();
    if (!shares_grads()) ops_->zero(leaf());  // including the shares of others
    if (options_.stage() == 0) return;
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
        const bool matrices = ranges_[i].begin < layout_.decayed;
        if (param_shards_ && matrices) continue;
        const Tensor& flat = slim_ && matrices ? copy_ : params_;
        const std::int64_t at = param_at(ranges_[i].begin);
        options_.exchange->collect(part(flat, at, at + shards_[i].count()).data, shards_[i],
                                   dtype_bytes(flat.dtype, 1));
    }
    options_.exchange->finish();
    if (copy_ && !slim_ && !param_shards_) ops_->refresh(copy_, params_);  // others', too
}

}  // namespace mr::model
