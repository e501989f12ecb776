// The memory a device engine works in, beside weights and cache: activations, the arrays that
// describe a batch, and scratch; planned, then taken in one piece each.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/cuda/device.h"
#include "core/tensor.h"
#include "model/engine.h"
#include "model/sink_views.h"
#include "ops/attention/paged/parts.h"
#include "ops/batch/batch.h"
#include "ops/step/step_cuda.h"

namespace mr::model {

// The most sinks and the longest window that attention sees as a view
// (ops/attention/paged/parts.h): of sequences that stream, and of layers that have sinks of their
// own. None: there are no views.
inline Stream widest_view(const ModelSpec& spec, const EngineOptions& options) {
    Stream out = options.stream;
    for (const LayerSpec& layer : spec.layer_specs()) {
        if (layer.mask.sinks == 0 || layer.mask.window == 0) continue;
        out.sinks = std::max(out.sinks, layer.mask.sinks);
        out.window = std::max(out.window, layer.mask.window);
    }
    return out;
}
// Keys of a sequence with `rows` rows in a pass, as attention numbers them: all positions, or those
// of a view.
inline std::int64_t most_keys(const ModelSpec& spec, const EngineOptions& options, int rows) {
    const Stream view = widest_view(spec, options);
    if (!view) return options.context;
    return std::max<std::int64_t>(options.context,
                                  cuda::attn::view_keys(view.sinks, view.window, rows));
}
// What a step in one kernel needs to know of a model.
inline cuda::StepShape step_shape(const ModelSpec& spec, const EngineOptions& options, int rows) {
    return {.layers = spec.layers,
            .dim = spec.dim,
            .hidden = spec.hidden,
            .heads = spec.heads,
            .kv_heads = spec.kv_heads,
            .head_dim = spec.head_dim,
            .keys = static_cast<int>(most_keys(spec, options, 1)),
            .streams = static_cast<bool>(widest_view(spec, options)),
            .rows = rows};
}

// Rows of a step in which `active` decode: steps are captured for these numbers alone, and the rows
// between sleep. The products take tokens by eights. Above 256, where a step takes several turns
// and its graph is as many times as large, there are four sizes between a power of two and the
// next.
constexpr int row_bucket(int active) {
    const auto power = static_cast<int>(std::bit_floor(static_cast<unsigned>(active - 1)));
    const int unit = active <= 8     ? 1
                     : active <= 64  ? 8
                     : active <= 128 ? 16
                     : active <= 256 ? 32
                                     : power / 4;
    return (active + unit - 1) / unit * unit;
}
static_assert(row_bucket(256) == 256 && row_bucket(257) == 320 && row_bucket(512) == 512 &&
              row_bucket(513) == 640 && row_bucket(4096) == 4096);
// Positions that a token sees at most, of a sequence that streams or does not.
inline std::int64_t most_seen(const EngineOptions& options) {
    return std::max(options.context, std::int64_t{options.stream.sinks} + options.stream.window);
}
// Tokens that a repetition penalty looks at, at most: a text that does not stream has no more.
inline int most_recent(const EngineOptions& options) {
    const auto context = static_cast<int>(options.context);
    return options.stream ? std::max(context, most_recent(options.stream)) : context;
}
// Rows in the decode form that go through the model together: blocks and short prompts of many
// sequences take several turns, more of them where long contexts make attention's partial results
// large. Blocks are rows of every pass, so theirs are worth more memory.
inline int decode_rows(const EngineOptions& options) {
    constexpr std::int64_t kRows = 256, kLongContext = 8192;
    const std::int64_t seen = most_seen(options);
    std::int64_t rows = seen > kLongContext ? kDecodePrompt : kRows;
    if (options.block_rows > kRows && seen <= kLongContext) {
        rows = std::clamp<std::int64_t>(kRows * kLongContext / seen / kRows * kRows, kRows,
                                        options.block_rows);
    }
    const std::int64_t given =
        std::min<std::int64_t>({options.max_batch, options.max_sequences * kDecodePrompt, rows});
    return static_cast<int>(std::max<std::int64_t>(row_bucket(options.max_sequences), given));
}
// Pages of the cache, with one that rows which sleep write to.
inline std::int64_t device_pages(const EngineOptions& options) {
    return KvCache::pool_pages(options.pool, options.max_sequences) + 1;
}

// What lies where. Of a plan there are shapes alone.
struct DeviceTensors {
    // Activations. Rows are those of the largest pass or step, or those with logits for `last` and
    // `logits`. Elements are 4 bytes wide, so that a buffer can be viewed in any compute type.
    Tensor x;        // [tokens, dim]                  the residual stream, f32
    Tensor h;        // [tokens, dim]                  the normed input, where not fused
    Tensor h2;       // [tokens, dim]                  the MLP's, with a parallel residual
    Tensor branch;   // [tokens, dim]                  what is to be added to x, where apart
    Tensor qkv;      // [tokens, q_dim + 2 kv_dim]     before the rotation, where not fused
    Tensor q, attn;  // [tokens, q_dim]
    Tensor gate_up;  // [tokens, 2 hidden]             where not fused
    Tensor up;       // [tokens, hidden]
    Tensor last;     // [rows, dim]                    what the LM head reads
    Tensor logits;   // [rows, vocab]
    // [positions, rotary / 2, 2]; where sequences may stream [tokens, ...], of the rows of a pass.
    Tensor rope;
    Tensor rope_sinks;              // [views, tokens, rotary / 2, 2], of SinkViews::views
    Tensor q_sinks;                 // [tokens, q_dim]: what asks sinks
    double* frequencies = nullptr;  // [rotary / 2], where sequences may stream
    double* nll = nullptr;          // [rows]
    // Of models that fill in tokens, [rows]: cuda::GuessRow and cuda::DeviceGuess.
    std::uint64_t* guess_rows = nullptr;
    std::uint32_t* guesses = nullptr;
    std::uint64_t* block = nullptr;                                     // cuda::BlockState
    static constexpr std::int64_t kGuessRowWords = 9, kGuessWords = 5;  // of 8 and of 4 bytes
    static constexpr std::int64_t kBlockWords = 128;                    // at most, of 8 bytes
    std::uint64_t* not_finite = nullptr;  // [1], with check_nan: ops::NotFinite, packed

    // A batch on the device, and the same arrays in pinned memory on their way there.
    struct Arrays {
        std::int32_t *ids, *positions, *sequence;  // [tokens]
        std::int32_t* first;  // [2 (sequences + 1)]: those of all parts, one after another
        std::int32_t* pages;  // [sequences, max_pages], circular tables
        std::int32_t* rows;   // [max_logits]: which rows get logits; targets
        // Where sequences may stream: [sequences, 2] sinks and window of each, and [sequences,
        // max_fronts] the pages of the sinks.
        std::int32_t *streams, *fronts;
    };
    Arrays pass{}, decode{};  // of given tokens, and of the rows that are fed
    int max_pages = 0;        // entries of a sequence's table
    int max_fronts = 0;
    // Of each row that is fed, [sequences, 2]: pages from the first number on take the entry of the
    // page that is the second number before them (KvCache::Circle).
    std::int32_t* circles = nullptr;

    // Every buffer once: take(bytes) gives its place.
    template <typename Take>
    void each(const Model& model, const EngineOptions& options, Take&& take);
};

struct DeviceBuffers : DeviceTensors {
    std::span<std::byte> attention_scratch, gemm_scratch, linear_scratch;
    std::span<std::byte> step_programs;  // one for each number of rows, up to kStepRows

    static std::uint64_t activation_bytes(const Model& model, const EngineOptions& options);
    static std::uint64_t scratch_bytes(const Model& model, const EngineOptions& options);
    // ... of what the engine takes beside these: the sampler's rows and the timeline's stamps.
    static std::uint64_t beside_bytes(const Model& model, const EngineOptions& options);
    // Stages of a pass at most. Products of many tokens have stamps of their own before and after
    // the library's kernels.
    static std::size_t most_stages(const ModelSpec& spec) {
        return static_cast<std::size_t>(spec.layers) * 64 + 256;
    }

    void take(const Model& model, const EngineOptions& options);

  private:
    cuda::DeviceArena activations_, scratch_;
};

}  // namespace mr::model
