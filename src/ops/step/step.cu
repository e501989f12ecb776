// The host's side of a step: which products in which order, and how much of the ring there is room
// for.
#include <algorithm>
#include <atomic>

#include "core/error.h"
#include "ops/linear/small_input.cuh"
#include "ops/step/step_cuda.h"
#include "ops/step/step_params.cuh"

namespace mr::cuda {
namespace step {
namespace {

struct Limits {
    int multiprocessors;
    std::size_t shared;
};
const Limits& limits() {
    static const Limits l = [] {
        const DeviceInfo info = require_device();
        return Limits{info.multiprocessors, info.shared_per_block - kCommonBytes - 256};
    }();
    return l;
}

std::size_t padded(std::size_t bytes) { return (bytes + 127) / 128 * 128; }

template <typename R>
struct Ring {};

// f with the ring and compute type of weights of `type`.
template <typename F>
bool with_ring(DType type, F&& f) {
    switch (type) {
        case DType::bf16:
            return f(Ring<HalfRing<bf16>>{}, bf16{}), true;
        case DType::f16:
            return f(Ring<HalfRing<__half>>{}, __half{}), true;
        case DType::q8_0x8:
            return f(Ring<QuantRing<small::Q8Layout>>{}, bf16{}), true;
        case DType::q4_0x8:
            return f(Ring<QuantRing<small::Q4Layout>>{}, bf16{}), true;
        default:
            return false;
    }
}

std::size_t attention_room(int head_dim) {
    std::size_t bytes = 0;
    with_head_dim(head_dim, [&](auto dim) {
        bytes = kTeams * sizeof(attn::DecodeShared<decltype(dim)::value>);
    });
    return bytes;
}

struct Fit {
    std::size_t room = 0;
    int stages = 0;
    int stage_bytes = 0;
    bool clear = false;
};

// All phases of a model, in order, as Phase or as what is accounted for.
template <typename Product, typename Attention>
void each_phase(const StepModel& model, Product&& product, Attention&& attention) {
    const auto layers = static_cast<int>(model.layers.size());
    for (int i = 0; i < layers; ++i) {
        const StepLayer& layer = model.layers[static_cast<std::size_t>(i)];
        // Parallel: `up` needs what `qkv` needs, so it is done while other blocks end that; and the
        // blocks add `down` to what they added `out` to.
        product(i, layer.qkv, true, true);
        if (model.parallel) product(i, layer.up, false, false);
        attention(i, layer.kv);
        product(i, layer.out, true, !model.parallel);
        if (!model.parallel) product(i, layer.up, true, true);
        product(i, layer.down, !model.parallel, true);
    }
    if (model.head.w) product(-1, model.head, true, false);
}

std::vector<Phase> phases_of(const StepModel& model, Fit& fit) {
    const int blocks = limits().multiprocessors;
    std::vector<Phase> phases;
    std::size_t room = attention_room(model.layers.front().kv.head_dim());
    int next = 0;
    each_phase(
        model,
        [&](int, const LinearIn& in, bool wait, bool arrive) {
            Phase phase{};
            phase.p = small::params_of(in);
            with_ring(in.w.dtype, [&]<typename R>(Ring<R>, auto) {
                const small::RoomLayout layout = small::room_layout<typename R::Weights>(
                    phase.p.k, phase.p.rows, (phase.p.tiles + blocks - 1) / blocks, 8 * 1024);
                phase.p.x_stride = layout.x_stride;
                phase.p.pass_tiles = layout.pass_tiles;
                room = std::max(room, layout.bytes);
                fit.stage_bytes = R::kStageBytes;
                fit.clear = fit.clear || phase.p.k % R::Weights::kGranule != 0;
            });
            // The tiles of all products go round the blocks, so that all get as many. What is added
            // to the same rows without a barrier between is one block's.
            const bool same = in.finish == Finish::add && !wait;
            phase.first_block = same ? phases.back().first_block : next;
            next = (next + phase.p.tiles) % blocks;
            phase.wait = wait && !phases.empty();
            phase.arrive = arrive;
            phases.push_back(phase);
        },
        [&](int, const ops::PagedKv& kv) {
            Phase phase{};
            phase.keys = kv.keys.data;
            phase.values = kv.values.data;
            phase.wait = phase.arrive = true;
            phases.push_back(phase);
        });
    fit.room = padded(room);
    const std::size_t ring = limits().shared > fit.room ? limits().shared - fit.room : 0;
    fit.stages = std::min<int>(kMostStages, static_cast<int>(ring / fit.stage_bytes));
    return phases;
}

constexpr std::size_t kBarrierBytes = 256;

}  // namespace
}  // namespace step

namespace {
std::atomic<bool> turn_taken{false};
}
bool StepTurn::take() {
    if (!taken_) taken_ = !turn_taken.exchange(true);
    return taken_;
}
StepTurn::~StepTurn() {
    if (taken_) turn_taken = false;
}

bool step_takes(const StepModel& model) {
    const std::optional<DeviceInfo> info = device();
    if (!info || info->sm < 90 || model.layers.empty()) return false;
    const StepLayer& first = model.layers.front();
    const DType type = first.qkv.w.dtype, compute = compute_type(type);
    if (type != DType::bf16 && type != DType::f16 && !ops::is_tiled(type)) return false;
    if (first.qkv.x.rows() > kStepRows || first.kv.keys.dtype != compute ||
        model.q.dtype != compute || step::attention_room(first.kv.head_dim()) == 0) {
        return false;
    }
    bool takes = true;
    const auto look = [&](const LinearIn& in) {
        takes = takes && in.w.dtype == type && linear_small_takes(type, in.w.cols());
    };
    step::each_phase(
        model, [&](int, const LinearIn& in, bool, bool) { look(in); },
        [&](int, const ops::PagedKv&) {});
    if (!takes) return false;
    step::Fit fit;
    step::phases_of(model, fit);
    return fit.stages >= 3;
}

std::size_t StepProgram::bytes(int layers) {
    return step::kBarrierBytes + (static_cast<std::size_t>(layers) * 5 + 1) * sizeof(step::Phase);
}

StepProgram::StepProgram(const StepModel& model, std::span<std::byte> memory, const Stream& stream,
                         Ledger* ledger)
    : model_(model), memory_(memory) {
    MR_CHECK(memory.size() >= bytes(static_cast<int>(model.layers.size())),
             "a program has StepProgram::bytes()");
    step::Fit fit;
    const std::vector<step::Phase> phases = step::phases_of(model, fit);
    rows_ = static_cast<int>(model.layers.front().qkv.x.rows());
    for (StepLayer& layer : model_.layers)
        layer.qkv.batch = nullptr;  // the caller's, and in phases
    phases_ = static_cast<int>(phases.size());
    blocks_ = step::limits().multiprocessors;
    stages_ = fit.stages;
    clear_ = fit.clear;
    ring_bytes_ = step::padded(static_cast<std::size_t>(fit.stages * fit.stage_bytes));
    shared_bytes_ = ring_bytes_ + fit.room;
    step::each_phase(
        model,
        [&](int, const LinearIn& in, bool, bool) {
            products_.push_back({in.kind, in.name, small::work_of(in, small::params_of(in))});
        },
        [](int, const ops::PagedKv&) {});
    stream.fill(memory.data(), 0, step::kBarrierBytes);
    stream.to_device(memory.data() + step::kBarrierBytes, phases.data(),
                     phases.size() * sizeof(step::Phase), ledger);
    stream.synchronize();
}

void StepProgram::run(const Context& ctx, const ops::DeviceBatch& batch) const {
    using namespace step;
    MR_CHECK(batch.tokens == rows_, "the program was made for as many rows");
    step::Args args{};
    args.barrier = reinterpret_cast<unsigned*>(memory_.data());
    args.phases = reinterpret_cast<const Phase*>(memory_.data() + kBarrierBytes);
    args.count = phases_;
    args.stages = stages_;
    args.flight = std::min(stages_, 3);  // 52 to 55 KB: more makes all else slower, less this
    args.room = static_cast<int>(ring_bytes_);
    args.clear = clear_;

    Context at = ctx;
    attn::Decode decode;
    const auto stamped = [&](OpKind kind, const char* name, int layer, const OpRecord& work) {
        at.layer = layer;
        Stamp* stamp = account(at, kind, name, work);
        if (!args.stamps) args.stamps = stamp;  // they follow one another
    };
    auto done = products_.begin();
    each_phase(
        model_,
        [&](int layer, const LinearIn&, bool, bool) {
            stamped(done->kind, done->name, layer, done->work);
            ++done;
        },
        [&](int layer, const ops::PagedKv& kv) {
            decode =
                attn::decode_of(ctx, model_.attn, model_.q, kv, batch, model_.mask, model_.scale);
            stamped(OpKind::attention, "attention", layer, decode.work);
        });
    args.attention = decode.args;
    args.tiles = static_cast<int>(decode.tiles);
    args.parts = decode.parts_at_once(std::int64_t{kTeams} * blocks_);

    const StepLayer& first = model_.layers.front();
    const Start how{blocks_, first.kv.head_dim(), rows_, shared_bytes_};
    with_ring(first.qkv.w.dtype,
              [&]<typename R, typename T>(Ring<R>, T) { step::start<R, T>(ctx, how, args); });
}

}  // namespace mr::cuda
