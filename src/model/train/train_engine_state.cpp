// Reading and writing the state of a model in training: tensor by tensor, and piece by piece where
// other ranks have parts of it.
#include <algorithm>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/half.h"
#include "model/train/train_engine.h"

namespace mr::model {
namespace {

std::size_t bytes_of(std::int64_t floats) {
    return static_cast<std::size_t>(floats) * sizeof(float);
}

// A request of the first rank: which state, and which elements of one rank.
struct StateRequest {
    std::int64_t state, begin, end;
    static constexpr std::int64_t kNoMore = -1;
};

}  // namespace

// Every tensor with the gap after it, in the order of the buffer.
void TrainEngine::write_entries(
    const std::function<void(const ParamLayout::Entry& entry, float* to)>& make) {
    std::vector<float> values;
    for (std::size_t i = 0; i < whole_.entries.size(); ++i) {
        const ParamLayout::Entry& entry = whole_.entries[i];
        const bool last = i + 1 == whole_.entries.size();
        const std::int64_t end = last ? whole_.count : whole_.entries[i + 1].offset;
        values.assign(static_cast<std::size_t>(end - entry.offset), 0.0f);
        make(entry, values.data());
        write(State::params, entry.offset, end, values.data());
    }
}

void TrainEngine::init(std::uint64_t seed) {
    write_entries([&](const ParamLayout::Entry& entry, float* to) {
        init_param(layout_, entry, to, seed, pool());
    });
}

void TrainEngine::load(const Model& model) {
    MR_CHECK(!model.deferred, "the model's weights are there");
    load(model.spec, [&](RoleAt at) { return RoleTensor{role_slot(model.weights, at), nullptr}; });
}

void TrainEngine::load(const ModelSpec& spec, const std::function<RoleTensor(RoleAt)>& read) {
    write_entries([&](const ParamLayout::Entry& entry, float* to) {
        const RoleTensor tensor = read(entry.at);
        copy_param(entry, to, spec, tensor.view, pool());
    });
}

void TrainEngine::set_state(const float* params, const float* m, const float* v) {
    if (params) write(State::params, 0, whole_.count, params);
    if (m) write(State::m, 0, whole_.count, m);
    if (v) write(State::v, 0, whole_.count, v);
}

void TrainEngine::get_state(float* params, float* m, float* v) {
    if (params) read(State::params, 0, whole_.count, params);
    if (m) read(State::m, 0, whole_.count, m);
    if (v) read(State::v, 0, whole_.count, v);
}

const float* TrainEngine::host(State state) {
    const Tensor& part = state == State::params ? params_ : state == State::m ? m_ : v_;
    if (!ops_->on_device() && !shares(state)) return part.f32();
    host_.resize(static_cast<std::size_t>(whole_.count));
    read(state, 0, whole_.count, host_.data());
    return host_.data();
}

std::int64_t TrainEngine::own_at(std::int64_t element) const {
    for (const Share& own : own_) {
        if (element >= own.begin && element < own.end) return own.at + element - own.begin;
    }
    MR_CHECK(false, "this rank has the element");
    return 0;
}

std::int64_t TrainEngine::param_at(std::int64_t element) const {
    if (element < layout_.decayed) return param_shards_ ? own_at(element) : element;
    const std::int64_t matrices = param_shards_ ? units_.matrices : layout_.decayed;
    return (slim_ ? 0 : matrices) + element - layout_.decayed;
}

void TrainEngine::write(State state, std::int64_t begin, std::int64_t end, const float* from) {
    if (state == State::params) {
        if (begin == 0) written_ = {};
        written_.add(from, end - begin);
    }
    if (!options_.pipeline.piped()) return write_own(state, begin, end, from);
    for (const ParamRange& range : ranges_) {
        const std::int64_t first = std::max(begin, range.whole);
        const std::int64_t last = std::min(end, range.whole + (range.end - range.begin));
        if (first >= last) continue;
        const std::int64_t here = range.begin - range.whole;
        write_own(state, first + here, last + here, from + (first - begin));
    }
}

void TrainEngine::write_own(State state, std::int64_t begin, std::int64_t end, const float* from) {
    const bool params = state == State::params;
    // From this element on every rank has all of them.
    const std::int64_t shared = !in_shares(state) ? 0 : params ? layout_.decayed : layout_.count;
    const auto put = [&](std::int64_t first, std::int64_t last) {
        if (first >= last) return;
        const float* const values = from + (first - begin);
        if (params) return write_params(first, last, values);
        const Tensor& flat = state == State::m ? m_ : v_;
        ops_->write(flat.f32() + own_at(first), values, bytes_of(last - first));
    };
    for (const Share& own : own_) {
        put(std::max(begin, own.begin), std::min({end, own.end, shared}));
    }
    put(std::max(begin, shared), end);
    if (!params) return;
    if (param_shards_) param_shards_->forget();
    if (copy_ && !slim_ && end == layout_.count) {
        ops_->refresh(copy_, part(params_, 0, copy_.shape.count()));
    }
}

// For parameters that this rank has; matrices must be in one piece.
void TrainEngine::write_params(std::int64_t begin, std::int64_t end, const float* from) {
    const std::int64_t matrices = std::clamp(layout_.decayed, begin, end);  // those end here
    if (begin < matrices) {
        const std::int64_t to = param_at(begin);
        const auto count = static_cast<std::size_t>(matrices - begin);
        std::vector<std::uint16_t> half(options_.bf16_masters ? count : 0);
        for (std::size_t i = 0; i < half.size(); ++i) half[i] = f32_to_bf16(from[i]);
        std::vector<float> rounded(slim_ ? 0 : half.size());
        for (std::size_t i = 0; i < rounded.size(); ++i) rounded[i] = bf16_to_f32(half[i]);
        if (slim_) {
            ops_->write(static_cast<std::uint16_t*>(copy_.data) + to, half.data(),
                        count * sizeof(std::uint16_t));
        } else {
            ops_->write(params_.f32() + to, rounded.empty() ? from : rounded.data(),
                        count * sizeof(float));
        }
    }
    if (matrices < end) {
        ops_->write(params_.f32() + param_at(matrices), from + (matrices - begin),
                    bytes_of(end - matrices));
    }
}

// Elements that this rank has, in one piece; for parameters, this applies to matrices.
void TrainEngine::read_here(State state, std::int64_t begin, std::int64_t end, float* to) {
    if (state != State::params) {
        const Tensor& flat = state == State::m ? m_ : v_;
        return ops_->read(to, flat.f32() + own_at(begin), bytes_of(end - begin));
    }
    const std::int64_t matrices = std::clamp(layout_.decayed, begin, end);
    if (begin < matrices && slim_) {
        std::vector<std::uint16_t> half(static_cast<std::size_t>(matrices - begin));
        ops_->read(half.data(), static_cast<const std::uint16_t*>(copy_.data) + param_at(begin),
                   half.size() * sizeof(std::uint16_t));
        for (std::size_t i = 0; i < half.size(); ++i) to[i] = bf16_to_f32(half[i]);
    } else if (begin < matrices) {
        ops_->read(to, params_.f32() + param_at(begin), bytes_of(matrices - begin));
    }
    if (matrices < end) {
        ops_->read(to + (matrices - begin), params_.f32() + param_at(matrices),
                   bytes_of(end - matrices));
    }
}

void TrainEngine::read(State state, std::int64_t begin, std::int64_t end, float* to) {
    if (options_.pipeline.piped()) {
        read_stages(state, begin, end, to);
    } else {
        read_own(state, begin, end, to);
    }
}

void TrainEngine::read_own(State state, std::int64_t begin, std::int64_t end, float* to) {
    const bool params = state == State::params;
    const std::int64_t shared = !in_shares(state) ? 0 : params ? layout_.decayed : layout_.count;
    for (int rank = 0; rank < options_.ranks() && begin < shared; ++rank) {
        for (const Share& share : shares_of(ranges_, shards_, rank)) {
            const std::int64_t from = std::max(begin, share.begin);
            const std::int64_t until = std::min({end, share.end, shared});
            if (from >= until) continue;
            float* const at = to + (from - begin);
            if (rank == options_.rank()) {
                read_here(state, from, until, at);
                continue;
            }
            const StateRequest request{static_cast<std::int64_t>(state), from, until};
            options_.exchange->send(rank, std::as_bytes(std::span(&request, 1)));
            options_.exchange->receive(rank, std::as_writable_bytes(std::span(
                                                 at, static_cast<std::size_t>(until - from))));
        }
    }
    if (const std::int64_t rest = std::max(begin, shared); rest < end) {
        read_here(state, rest, end, to + (rest - begin));
    }
}

void TrainEngine::serve() {
    if (options_.pipeline.piped() && options_.rank() == 0) return serve_stages();
    if (options_.stage() == 0) return;
    std::vector<float> values;
    for (;;) {
        StateRequest request{};
        options_.exchange->receive(0, std::as_writable_bytes(std::span(&request, 1)));
        if (request.state == StateRequest::kNoMore) return;
        values.resize(static_cast<std::size_t>(request.end - request.begin));
        read_here(static_cast<State>(request.state), request.begin, request.end, values.data());
        options_.exchange->send(0, std::as_bytes(std::span(values)));
    }
}

void TrainEngine::end_serving() {
    const StateRequest none{StateRequest::kNoMore, 0, 0};
    if (options_.pipeline.stage == 0) {
        for (int stage = 1; stage < options_.pipeline.stages(); ++stage) {
            options_.pipeline.link->send_bytes(stage, std::as_bytes(std::span(&none, 1)));
        }
    }
    if (options_.stage() == 0) return;
    for (int rank = 1; rank < options_.ranks(); ++rank) {
        options_.exchange->send(rank, std::as_bytes(std::span(&none, 1)));
    }
}

// Elements of the whole, read by the first rank of all: it asks the first replica of each other
// stage, which asks the other replicas for their shares.
void TrainEngine::read_stages(State state, std::int64_t begin, std::int64_t end, float* to) {
    const PipelineStage& pipeline = options_.pipeline;
    for (int stage = 0; stage < pipeline.stages(); ++stage) {
        for (const ParamRange& range : stage_ranges_[static_cast<std::size_t>(stage)]) {
            if (range.unit == 0 && stage > 0) continue;  // a copy of the table
            const std::int64_t first = std::max(begin, range.whole);
            const std::int64_t last = std::min(end, range.whole + (range.end - range.begin));
            if (first >= last) continue;
            const std::int64_t there = range.begin - range.whole;
            float* const at = to + (first - begin);
            if (stage == pipeline.stage) {
                read_own(state, first + there, last + there, at);
                continue;
            }
            const StateRequest request{static_cast<std::int64_t>(state), first + there,
                                       last + there};
            pipeline.link->send_bytes(stage, std::as_bytes(std::span(&request, 1)));
            pipeline.link->receive_bytes(stage, std::as_writable_bytes(std::span(
                                                    at, static_cast<std::size_t>(last - first))));
        }
    }
}

void TrainEngine::serve_stages() {
    std::vector<float> values;
    for (;;) {
        StateRequest request{};
        options_.pipeline.link->receive_bytes(0, std::as_writable_bytes(std::span(&request, 1)));
        if (request.state == StateRequest::kNoMore) return end_serving();
        values.resize(static_cast<std::size_t>(request.end - request.begin));
        read_own(static_cast<State>(request.state), request.begin, request.end, values.data());
        options_.pipeline.link->send_bytes(0, std::as_bytes(std::span(values)));
    }
}

}  // namespace mr::model
