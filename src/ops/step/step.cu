// The host side of a step: the order of the products, and the size of the ring buffer.
#include <algorithm>

#include "core/error.h"
#include "ops/linear/small_input.cuh"
#include "ops/step/step_cuda.h"
#include "ops/step/step_link.cuh"
#include "ops/step/step_params.cuh"
#include "ops/step/step_view.cuh"

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

using small::kHeld;
using small::kInputThreads;

std::size_t padded(std::size_t bytes) { return (bytes + 127) / 128 * 128; }

template <typename R>
struct Ring {};

// Calls f with the ring and the compute type for weights of `type`.
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

// Whether keys are numbered by a view (ops/attention/paged/parts.h).
bool views(const StepModel& model) { return model.streams || model.mask.sinks > 0; }

std::size_t attention_room(const StepModel& model) {
    std::size_t bytes = 0;
    with_head_dim(model.layers.front().kv.head_dim(), [&](auto dim) {
        constexpr int kDim = decltype(dim)::value;
        bytes = kTeams *
                (views(model) ? sizeof(ViewShared<bf16, kDim>) : sizeof(AttendShared<bf16, kDim>));
    });
    return bytes;
}

struct Fit {
    std::size_t room = 0;
    int stages = 0;
    int stage_bytes = 0;
    int flight = 0;
    bool clear = false;
};

// One epilogue handles the results of up to this many tiles per block (8 KB of sums, one token).
constexpr int kMostTiles = 16;

// Whether to use tiles of 8 rows: if the most loaded block then has fewer rows.
bool halves(DType type, const LinearIn& in, int blocks) {
    bool can =
        in.finish == Finish::qkv || in.finish == Finish::add || in.finish == Finish::activate;
    with_ring(type, [&]<typename R>(Ring<R>, auto) { can = can && R::kHalves; });
    const auto most = [&](std::int64_t rows) {
        return ((in.w.rows() + rows - 1) / rows + blocks - 1) / blocks * rows;
    };
    return can && most(kTileRows / 2) < most(kTileRows) &&
           most(kTileRows / 2) <= kMostTiles * kTileRows / 2;
}

// Calls product() and attention() for all phases of a model, in order: to build them or to account
// for them.
template <typename Product, typename Attention>
void each_phase(const StepModel& model, Product&& product, Attention&& attention) {
    const auto layers = static_cast<int>(model.layers.size());
    for (int i = 0; i < layers; ++i) {
        const StepLayer& layer = model.layers[static_cast<std::size_t>(i)];
        product(i, layer.qkv, true, true);
        if (model.parallel) {
            // `up` has the input of `qkv`, so blocks compute it while others finish `qkv`, and
            // `down` while attention's results are in flight. A block adds `out` to the same rows
            // to which it added `down`.
            product(i, layer.up, false, false);
            attention(i, layer.kv);
            product(i, layer.down, true, false);
            product(i, layer.out, false, true);
            continue;
        }
        attention(i, layer.kv);
        product(i, layer.out, true, true);
        product(i, layer.up, true, true);
        product(i, layer.down, true, true);
    }
    if (model.head.w) product(-1, model.head, true, false);
}

// The words that the phases of one token pass on, in memory order.
struct Words {
    explicit Words(const StepShape& shape) {
        const std::int64_t q_dim = shape.heads * shape.head_dim;
        qkv = x + shape.dim;
        attn = qkv + ((shape.streams ? 2 : 1) * q_dim + 2 * shape.kv_heads * shape.head_dim) / 2;
        up = attn + q_dim / 2;
        part = up + shape.hidden / 2;
        all = part + shape.heads * shape.parts() * (shape.head_dim + 2);
    }
    std::int64_t x = 0, qkv, attn, up, part, all;  // offset of each
};

// Whether a step of one token can pass on its results as words: rows must fit into registers and
// consist of whole pieces, and one epilogue must handle all results of a product.
bool with_words(const StepModel& model) {
    const int blocks = limits().multiprocessors;
    const Tensor& x = model.layers.front().qkv.x;
    bool can = x.rows() == 1 && x.cols() <= std::int64_t{kMultiplying} * blocks;
    const auto look = [&](const LinearIn& in) {
        const std::int64_t k = in.w.cols(), n = in.w.rows();
        const bool normed = in.norm.weight.data != nullptr;
        const bool first = in.finish == Finish::qkv || in.finish == Finish::gate ||
                           in.finish == Finish::activate || in.finish == Finish::store;
        can = can && k % 16 == 0 && normed == first && (in.finish == Finish::store || n % 4 == 0);
        can = can && (!normed || k <= kHeld * 4 * small::kInputThreads);
        can = can &&
              (in.finish == Finish::store || n <= std::int64_t{kMostTiles} * kTileRows * blocks);
    };
    each_phase(
        model, [&](int, const LinearIn& in, bool, bool) { look(in); },
        [](int, const ops::PagedKv&) {});
    return can;
}

StepShape shape_of(const StepModel& model) {
    const StepLayer& layer = model.layers.front();
    return {.layers = static_cast<int>(model.layers.size()),
            .dim = layer.qkv.x.cols(),
            .hidden = layer.down.w.cols(),
            .heads = model.q.dim(1),
            .kv_heads = layer.kv.kv_heads(),
            .head_dim = layer.kv.head_dim(),
            .keys = model.keys,
            .streams = views(model),
            .rows = static_cast<int>(layer.qkv.x.rows())};
}

// Connects the phases: which words each reads and writes. A phase's tag is its index in the order,
// from 1; tag 0 is that of the step's input.
void link(const StepModel& model, std::vector<Phase>& phases, Word* memory) {
    const Words words(shape_of(model));
    int number = 0, x_tag = 0, qkv_tag = 0, up_tag = 0, attn_tag = 0;
    each_phase(
        model,
        [&](int, const LinearIn& in, bool, bool arrive) {
            Phase& phase = phases[static_cast<std::size_t>(number++)];
            if (in.norm.weight.data) {
                phase.in = memory + words.x, phase.in_tag = x_tag;
            } else if (in.x.data == model.attn.data) {
                phase.in = memory + words.attn, phase.in_tag = attn_tag;
            } else {
                phase.in = memory + words.up, phase.in_tag = up_tag;
            }
            if (in.finish == Finish::qkv) {
                phase.out = memory + words.qkv, qkv_tag = number;
            } else if (in.finish == Finish::gate || in.finish == Finish::activate) {
                phase.out = memory + words.up, up_tag = number;
            } else if (in.finish == Finish::add) {
                // Two products add to the same rows without a barrier between them. The first sum
                // stays in memory, where only its own block reads it; only the second is sent on.
                const bool second =
                    phases[static_cast<std::size_t>(number) - 2].p.finish == Finish::add &&
                    phases[static_cast<std::size_t>(number) - 2].keys == nullptr;
                if (!second) phase.residual = memory + words.x, phase.residual_tag = x_tag;
                if (arrive) phase.out = memory + words.x, x_tag = number;
            }
        },
        [&](int, const ops::PagedKv&) {
            Phase& phase = phases[static_cast<std::size_t>(number++)];
            phase.in = memory + words.qkv, phase.in_tag = qkv_tag;
            phase.out = memory + words.attn, attn_tag = number;
        });
}

std::vector<Phase> phases_of(const StepModel& model, Fit& fit) {
    const int blocks = limits().multiprocessors;
    const bool words = with_words(model);
    std::vector<Phase> phases;
    std::size_t room = attention_room(model);
    int next = 0;
    each_phase(
        model,
        [&](int, const LinearIn& in, bool wait, bool arrive) {
            Phase phase{};
            phase.p = small::params_of(in);
            phase.half = words && halves(in.w.dtype, in, blocks);
            if (phase.half) phase.p.tiles = (phase.p.n + kTileRows / 2 - 1) / (kTileRows / 2);
            with_ring(in.w.dtype, [&]<typename R>(Ring<R>, auto) {
                const small::RoomLayout layout = small::room_layout<typename R::Weights>(
                    phase.p.k, phase.p.rows, (phase.p.tiles + blocks - 1) / blocks, 8 * 1024);
                phase.p.x_stride = layout.x_stride;
                phase.p.pass_tiles = layout.pass_tiles;
                MR_CHECK(!words || in.finish == Finish::store ||
                             phase.p.tiles <= layout.pass_tiles * blocks,
                         "words are sent in one pass");
                room = std::max(room, layout.bytes);
                if (words && R::Weights::kQuantised && phase.p.norm_weight) {
                    room =
                        std::max(room, layout.inputs + sizeof(float) * kRowShared<kInputThreads> +
                                           TaggedRow::kRoomBytes);
                }
                fit.stage_bytes = R::kStageBytes;
                fit.flight = R::kFlight;
                fit.clear = fit.clear || phase.p.k % R::Weights::kGranule != 0;
            });
            // The tiles of all products are distributed to the blocks in turn, so that all get
            // equally many. Tiles that are added to the same rows without a barrier between them go
            // to the same block.
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
std::size_t phase_bytes(int layers) {
    return padded((static_cast<std::size_t>(layers) * 5 + 1) * sizeof(Phase));
}

}  // namespace
}  // namespace step

bool step_takes(const StepModel& model) {
    const std::optional<DeviceInfo> info = device();
    if (!info || info->sm < 90 || model.layers.empty()) return false;
    const StepLayer& first = model.layers.front();
    const DType type = first.qkv.w.dtype, compute = compute_type(type);
    if (type != DType::bf16 && type != DType::f16 && !ops::is_tiled(type)) return false;
    if (first.qkv.x.rows() > kStepRows || first.kv.keys.dtype != compute ||
        model.q.dtype != compute || step::attention_room(model) == 0) {
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
    // With views and quantised weights, warps that only load keys follow the ring by the parity of
    // its barriers. They must not fall behind by a whole round: at most five stages of keys and
    // three of weights are in flight.
    const bool followed = step::views(model) && ops::is_tiled(type);
    return fit.stages >= (followed ? 9 : 3);
}

int StepShape::parts() const {
    return attn::parts_of(keys, streams ? attn::kAllShort : attn::kShortParts);
}

std::size_t StepProgram::bytes(const StepShape& shape) {
    const std::size_t words =
        shape.rows == 1 ? static_cast<std::size_t>(step::Words(shape).all) * sizeof(Word) : 0;
    return step::kBarrierBytes + step::phase_bytes(shape.layers) + words;
}

StepProgram::StepProgram(const StepModel& model, std::span<std::byte> memory, const Stream& stream,
                         Ledger* ledger)
    : model_(model), memory_(memory) {
    rows_ = static_cast<int>(model.layers.front().qkv.x.rows());
    const StepShape shape = step::shape_of(model);
    MR_CHECK(memory.size() >= bytes(shape), "a program has StepProgram::bytes()");
    step::Fit fit;
    std::vector<step::Phase> phases = step::phases_of(model, fit);
    words_ = step::with_words(model);
    std::byte* words = memory.data() + step::kBarrierBytes + step::phase_bytes(shape.layers);
    if (words_) {
        step::link(model, phases, reinterpret_cast<Word*>(words));
        part_words_ = words + step::Words(shape).part * static_cast<std::int64_t>(sizeof(Word));
    }
    for (StepLayer& layer : model_.layers)
        layer.qkv.batch = nullptr;  // the caller's batch; the phases have its fields already
    phases_ = static_cast<int>(phases.size());
    blocks_ = step::limits().multiprocessors;
    stages_ = fit.stages;
    flight_ = std::min(fit.stages, fit.flight);
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
    // Tags start at 0: no word may hold an expected tag before it is sent.
    const auto words_bytes = static_cast<std::size_t>(memory.data() + memory.size() - words);
    if (words_) stream.fill(words, 0xff, words_bytes);
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
    args.flight = flight_;
    args.room = static_cast<int>(ring_bytes_);
    args.clear = clear_;

    Context at = ctx;
    attn::Decode decode;
    const auto stamped = [&](OpKind kind, const char* name, int layer, const OpRecord& work) {
        at.layer = layer;
        Stamp* stamp = account(at, kind, name, work);
        if (!args.stamps) args.stamps = stamp;  // the others follow this one
    };
    auto done = products_.begin();
    each_phase(
        model_,
        [&](int layer, const LinearIn&, bool, bool) {
            stamped(done->kind, done->name, layer, done->work);
            ++done;
        },
        [&](int layer, const ops::PagedKv& kv) {
            decode = attn::decode_of(ctx, model_.attn, model_.q, kv, batch, model_.mask,
                                     model_.scale, model_.q_sinks);
            stamped(OpKind::attention, "attention", layer, decode.work);
        });
    args.attention = decode.args;
    args.tiles = static_cast<int>(decode.tiles);
    args.parts = decode.parts_at_once(std::int64_t{kTeams} * blocks_);
    MR_CHECK(!views(model_) || decode.args.shorts == attn::kAllShort,
             "a unit of a view has 64 keys");

    const StepLayer& first = model_.layers.front();
    if (words_) {
        args.x = static_cast<const float*>(first.qkv.x.data);
        args.columns = static_cast<int>(first.qkv.x.cols());
        args.x_words = reinterpret_cast<Word*>(memory_.data() + kBarrierBytes +
                                               phase_bytes(static_cast<int>(model_.layers.size())));
        args.part_words = reinterpret_cast<Word*>(part_words_);
        args.most_parts = shape_of(model_).parts();
        MR_CHECK(decode.args.max_parts <= args.most_parts, "a program has room for every part");
    }
    const Start how{blocks_, first.kv.head_dim(), words_, views(model_), shared_bytes_};
    with_ring(first.qkv.w.dtype,
              [&]<typename R, typename T>(Ring<R>, T) { step::start<R, T>(ctx, how, args); });
}

}  // namespace mr::cuda
