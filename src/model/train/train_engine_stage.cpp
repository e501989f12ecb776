// A stage of a pipeline: what passes wait for and send, and what the stages exchange at the end of
// a step.
#include <algorithm>
#include <vector>

#include "core/error.h"
#include "model/train/train_engine.h"

namespace mr::model {

StageSpan PipelineStage::span(int of) const {
    if (!piped()) return {};
    StageSpan out{0, 0};
    for (int i = 0; i <= of; ++i) {
        out.begin = out.end;
        out.end += layers[static_cast<std::size_t>(i)];
    }
    return out;
}

// A pass's input was requested by the pass before it, so there are two tickets of each kind.
void TrainEngine::await_input(int number, bool more) {
    const PipelineStage& p = options_.pipeline;
    const auto ticket = [](Tickets& of, int n) -> StageLink::Ticket& {
        return of[static_cast<std::size_t>(n) % 2];
    };
    if (!first_stage()) {
        if (number == 0) ticket(inputs_, 0) = p.link->receive(p.stage - 1, pass_->input(0));
        if (more) {
            ticket(inputs_, number + 1) = p.link->receive(p.stage - 1, pass_->input(number + 1));
        }
        p.link->wait(ticket(inputs_, number));
    }
    if (!last_stage()) p.link->wait(ticket(outputs_, number));  // the buffer is free again
}

// Requests the first gradient of a step; each gradient requests the next.
void TrainEngine::ask_for_gradient() {
    const PipelineStage& p = options_.pipeline;
    if (!last_stage()) gradients_in_[0] = p.link->receive(p.stage + 1, pass_->gradient(0));
}

void TrainEngine::send_output(int number) {
    if (last_stage()) return;
    const PipelineStage& p = options_.pipeline;
    outputs_[static_cast<std::size_t>(number) % 2] =
        p.link->send(p.stage + 1, pass_->output(number));
}

void TrainEngine::await_gradient(int number, bool more) {
    const PipelineStage& p = options_.pipeline;
    const auto here = static_cast<std::size_t>(number) % 2, next = 1 - here;
    if (last_stage()) return p.link->wait(gradients_out_[here]);  // the head writes there
    if (more) {
        p.link->wait(gradients_out_[next]);
        gradients_in_[next] = p.link->receive(p.stage + 1, pass_->gradient(number + 1));
    }
    p.link->wait(gradients_in_[here]);
}

void TrainEngine::send_gradient(int number) {
    if (first_stage()) return;
    const PipelineStage& p = options_.pipeline;
    gradients_out_[static_cast<std::size_t>(number) % 2] =
        p.link->send(p.stage - 1, pass_->gradient(number));
}

// Waits until nothing of the step or the validation is in flight.
void TrainEngine::end_passes() {
    MR_CHECK(forwards_ == backwards_, "every pass that went forward has come back");
    forwards_ = backwards_ = evaluated_ = 0;
    if (!options_.pipeline.piped()) return;
    for (Tickets* sent : {&outputs_, &gradients_out_}) {
        for (StageLink::Ticket& ticket : *sent) {
            options_.pipeline.link->wait(ticket);
            ticket = StageLink::kNone;
        }
    }
}

// Each end of a pipeline has one gradient of a tied table: of the tokens, of the head. Both
// exchange them and add them up, as one rank would.
void TrainEngine::add_other_table() {
    const PipelineStage& p = options_.pipeline;
    const int other = first_stage() ? p.stages() - 1 : 0;
    MR_CHECK(grad_views_[leaf_].embedding.data == leaf().data, "the table comes first");
    for (const Share& own : own_) {
        const std::int64_t end = std::min(own.end, other_table_.shape.count());
        if (own.begin >= end) continue;
        const Tensor table = part(leaf(), own.begin, end);
        const Tensor theirs = part(other_table_, own.begin, end);
        p.link->swap(other, table, theirs);
        ops_->sum_of(table, table, theirs);
    }
}

// Which ranges and blocks of the whole every stage has; for a tied table those of the first stage
// count.
void TrainEngine::find_blocks() {
    const std::vector<ParamRange> all = param_ranges(whole_);
    const auto first_block = [&](std::int64_t whole) {
        std::int64_t block = 0;
        for (const ParamRange& range : all) {
            if (range.begin == whole) return block;
            block += block_count(range);
        }
        throw ContractError("a stage has ranges of the whole");
    };
    for (const ParamRange& range : all) whole_blocks_ += block_count(range);
    for (int stage = 0; stage < options_.pipeline.stages(); ++stage) {
        std::vector<std::int64_t>& blocks = stage_blocks_.emplace_back();
        const ParamLayout layout = param_layout(spec(), options_.pipeline.span(stage));
        std::int64_t here = 0;
        for (const ParamRange& range : stage_ranges_.emplace_back(param_ranges(layout))) {
            const std::int64_t count = block_count(range), first = first_block(range.whole);
            for (std::int64_t i = 0; i < count; ++i, ++here) {
                if (range.unit == 0 && stage > 0) continue;
                blocks.push_back(first + i);
                if (stage == options_.pipeline.stage) counted_blocks_.push_back(here);
            }
        }
    }
    const auto bytes = static_cast<std::size_t>(whole_blocks_) * sizeof(double);
    whole_squares_ = static_cast<double*>(ops_->allocate("squares", bytes));
}

// Adds the blocks of all stages in the order of the whole.
void TrainEngine::add_squares_of_stages(double* norm) {
    std::vector<double> own(static_cast<std::size_t>(blocks_));
    ops_->read(own.data(), squares_, own.size() * sizeof(double));
    std::size_t most = 0;  // every stage passes equally many numbers
    for (const auto& blocks : stage_blocks_) most = std::max(most, blocks.size());
    std::vector<double> mine(most);
    for (std::size_t i = 0; i < counted_blocks_.size(); ++i) {
        mine[i] = own[static_cast<std::size_t>(counted_blocks_[i])];
    }
    const std::vector<double> gathered = options_.pipeline.link->gather(mine);
    std::vector<double> all(static_cast<std::size_t>(whole_blocks_));
    for (std::size_t stage = 0; stage < stage_blocks_.size(); ++stage) {
        for (std::size_t i = 0; i < stage_blocks_[stage].size(); ++i) {
            all[static_cast<std::size_t>(stage_blocks_[stage][i])] = gathered[stage * most + i];
        }
    }
    ops_->write(whole_squares_, all.data(), all.size() * sizeof(double));
    ops_->sum_parts(norm, whole_squares_, whole_blocks_);
}

}  // namespace mr::model
