// The state of a model in training, in and out: tensor by tensor, and piece by piece where other
// ranks have parts of it.
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

// A request of the first rank: which state, and elements of it that one rank has.
struct StateRequest {
    std::int64_t state, begin, end;
    static constexpr std::int64_t kNoMore = -1;
};

}  // namespace

// Every tensor with the gap behind it, in the order of the buffer.
void TrainEngine::write_entries(
    const std::function<void(const ParamLayout::Entry& entry, float* to)>& make) {
    std::vector<float> values;
    for (std::size_t i = 0; i < layout_.entries.size(); ++i) {
        const ParamLayout::Entry& entry = layout_.entries[i];
        const bool last = i + 1 == layout_.entries.size();
        const std::int64_t end = last ? layout_.count : layout_.entries[i + 1].offset;
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
    if (params) write(State::params, 0, layout_.count, params);
    if (m) write(State::m, 0, layout_.count, m);
    if (v) write(State::v, 0, layout_.count, v);
}

void TrainEngine::get_state(float* params, float* m, float* v) {
    if (params) read(State::params, 0, layout_.count, params);
    if (m) read(State::m, 0, layout_.count, m);
    if (v) read(State::v, 0, layout_.count, v);
}

const float* TrainEngine::host(State state) {
    const Tensor& part = state == State::params ? params_ : state == State::m ? m_ : v_;
    if (!ops_->on_device() && !shares(state)) return part.f32();
    host_.resize(static_cast<std::size_t>(layout_.count));
    read(state, 0, layout_.count, host_.data());
    return host_.data();
}

void TrainEngine::write(State state, std::int64_t begin, std::int64_t end, const float* from) {
    if (state == State::params) {
        if (begin == 0) written_ = {};
        written_.add(from, end - begin);
        return write_params(begin, end, from);
    }
    const Tensor& flat = state == State::m ? m_ : v_;
    for (const Share& own : own_) {
        const std::int64_t first = std::max(begin, own.begin), last = std::min(end, own.end);
        if (first >= last) continue;
        ops_->write(flat.f32() + own.at + (first - own.begin), from + (first - begin),
                    bytes_of(last - first));
    }
}

void TrainEngine::write_params(std::int64_t begin, std::int64_t end, const float* from) {
    const std::int64_t matrices = std::clamp(layout_.decayed, begin, end);  // those end here
    const auto rounded_count =
        static_cast<std::size_t>(options_.bf16_masters ? matrices - begin : 0);
    std::vector<std::uint16_t> half(rounded_count);
    for (std::size_t i = 0; i < rounded_count; ++i) half[i] = f32_to_bf16(from[i]);
    if (slim_) {
        if (rounded_count > 0) {
            auto* to = static_cast<std::uint16_t*>(copy_.data) + begin;
            ops_->write(to, half.data(), half.size() * sizeof(std::uint16_t));
        }
        if (matrices < end) {
            ops_->write(params_.f32() + (matrices - layout_.decayed), from + (matrices - begin),
                        bytes_of(end - matrices));
        }
        return;
    }
    std::vector<float> rounded;
    if (rounded_count > 0) {
        rounded.assign(from, from + (end - begin));
        for (std::size_t i = 0; i < rounded_count; ++i) rounded[i] = bf16_to_f32(half[i]);
        from = rounded.data();
    }
    ops_->write(params_.f32() + begin, from, bytes_of(end - begin));
    if (copy_ && end == layout_.count) ops_->refresh(copy_, params_);
}

void TrainEngine::read_params(std::int64_t begin, std::int64_t end, float* to) {
    const std::int64_t skipped = slim_ ? layout_.decayed : 0;
    const std::int64_t matrices = std::clamp(skipped, begin, end);
    std::vector<std::uint16_t> half(static_cast<std::size_t>(matrices - begin));
    if (!half.empty()) {
        ops_->read(half.data(), static_cast<const std::uint16_t*>(copy_.data) + begin,
                   half.size() * sizeof(std::uint16_t));
    }
    for (std::size_t i = 0; i < half.size(); ++i) to[i] = bf16_to_f32(half[i]);
    if (matrices == end) return;
    ops_->read(to + (matrices - begin), params_.f32() + (matrices - skipped),
               bytes_of(end - matrices));
}

void TrainEngine::read(State state, std::int64_t begin, std::int64_t end, float* to) {
    if (state == State::params) return read_params(begin, end, to);
    const Tensor& flat = state == State::m ? m_ : v_;
    for (int rank = 0; rank < (shares(state) ? options_.ranks() : 1); ++rank) {
        const bool mine = !shares(state) || rank == options_.rank();
        for (const Share& share : mine ? own_ : shares_of(ranges_, shards_, rank)) {
            const std::int64_t from = std::max(begin, share.begin),
                               until = std::min(end, share.end);
            if (from >= until) continue;
            if (mine) {
                const float* at = flat.f32() + share.at + (from - share.begin);
                ops_->read(to + (from - begin), at, bytes_of(until - from));
                continue;
            }
            const StateRequest request{static_cast<std::int64_t>(state), from, until};
            options_.exchange->send(rank, std::as_bytes(std::span(&request, 1)));
            options_.exchange->receive(
                rank, std::as_writable_bytes(
                          std::span(to + (from - begin), static_cast<std::size_t>(until - from))));
        }
    }
}

void TrainEngine::serve() {
    std::vector<float> values;
    for (;;) {
        StateRequest request{};
        options_.exchange->receive(0, std::as_writable_bytes(std::span(&request, 1)));
        if (request.state == StateRequest::kNoMore) return;
        values.resize(static_cast<std::size_t>(request.end - request.begin));
        const Tensor& flat = static_cast<State>(request.state) == State::m ? m_ : v_;
        for (const Share& share : own_) {
            if (request.begin < share.begin || request.end > share.end) continue;
            ops_->read(values.data(), flat.f32() + share.at + (request.begin - share.begin),
                       bytes_of(std::ssize(values)));
        }
        options_.exchange->send(0, std::as_bytes(std::span(values)));
    }
}

void TrainEngine::end_serving() {
    const StateRequest none{StateRequest::kNoMore, 0, 0};
    for (int rank = 1; rank < options_.ranks(); ++rank) {
        options_.exchange->send(rank, std::as_bytes(std::span(&none, 1)));
    }
}

}  // namespace mr::model
