// The memory a device engine works in besides weights and cache: activations, the arrays that
// describe a batch, and scratch; each is planned, then allocated in one piece.
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
// (ops/attention/paged/parts.h), over streaming sequences and layers with their own sinks. None:
// there are no views.
inline Stream widest_view(const ModelSpec& spec, const EngineOptions& options) {
    Stream out = options.stream;
    for (const LayerSpec& layer : spec.layer_specs()) {
        if (layer.mask.sinks == 0 || layer.mask.window == 0) continue;
        out.sinks = std::max(out.sinks, layer.mask.sinks);
        out.window = std::max(out.window, layer.mask.window);
    }
    return out;
}
// Number of keys, as attention counts them, of a sequence with `rows` rows in a pass: all
// positions, or those of a view.
inline std::int64_t most_keys(const ModelSpec& spec, const EngineOptions& options, int rows) {
    const Stream view = widest_view(spec, options);
    if (!view) return options.context;
    return std::max<std::int64_t>(options.context,
                                  cuda::attn::view_keys(view.sinks, view.window, rows));
}
// The model's shape for a step in one kernel.
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

// Rows of a step with `active` decoding rows: steps are captured for these sizes only, and
// the remaining rows are idle. GEMMs take tokens in eights. Above 256, where a step takes
// several turns and its graph grows with them, there are four sizes from one power of two to
// the next.
constexpr int row_bucket(int active) {
    const auto power = static_cast<int>(std::bit_floor(static_cast<unsigned>(active - 1)));
    const int unit = active <= 8     ? 1
                     : active <= 64  ? 8
                     : active <= 128 ? 16
                     : active <= 256 ? 32
                                     : power / 4;  // power >= 256
    return (active + unit - 1) / unit * unit;      // NOLINT(clang-analyzer-core.DivideZero)
}
static_assert(row_bucket(256) == 256 && row_bucket(257) == 320 && row_bucket(512) == 512 &&
              row_bucket(513) == 640 && row_bucket(4096) == 4096);
// Positions that a token sees at most, streaming or not.
inline std::int64_t most_seen(const EngineOptions& options) {
    return std::max(options.context, std::int64_t{options.stream.sinks} + options.stream.window);
}
// Tokens that a repetition penalty looks at, at most. A text that does not stream has no more than
// the context.
inline int most_recent(const EngineOptions& options) {
    const auto context = static_cast<int>(options.context);
    return options.stream ? std::max(context, most_recent(options.stream)) : context;
}
// Rows in the decode form that go through the model together: blocks and short prompts of many
// sequences take several turns, and more turns where long contexts make attention's partial results
// large. Diffusion blocks are rows of every pass, so they get more memory.
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
// Pages of the cache, and one that idle rows write to.
inline std::int64_t device_pages(const EngineOptions& options) {
    return KvCache::pool_pages(options.pool, options.max_sequences) + 1;
}

// Where each buffer lies. In a plan there are only shapes.
struct DeviceTensors {
    // Activations, with the rows of the largest pass or step; `last` and `logits` only have the
    // rows with logits. Elements are 4 bytes wide, so that a buffer can be viewed in any compute
    // type.
    Tensor x;        // [tokens, dim]                  the residual stream, f32
    Tensor h;        // [tokens, dim]                  the normed input, where not fused
    Tensor h2;       // [tokens, dim]                  the MLP's, with a parallel residual
    Tensor branch;   // [tokens, dim]                  to be added to x, where separate
    Tensor qkv;      // [tokens, q_dim + 2 kv_dim]     before the rotation, where not fused
    Tensor q, attn;  // [tokens, q_dim]
    Tensor gate_up;  // [tokens, 2 hidden]             where not fused
    Tensor up;       // [tokens, hidden]
    Tensor last;     // [rows, dim]                    what the LM head reads
    Tensor logits;   // [rows, vocab]
    // [positions, rotary / 2, 2]; where sequences may stream [tokens, ...], for the rows of a pass.
    Tensor rope;
    Tensor rope_sinks;              // [views, tokens, rotary / 2, 2], for SinkViews::views
    Tensor q_sinks;                 // [tokens, q_dim]: queries for sinks
    double* frequencies = nullptr;  // [rotary / 2], where sequences may stream
    double* nll = nullptr;          // [rows]
    // For diffusion models, [rows]: cuda::GuessRow and cuda::DeviceGuess.
    std::uint64_t* guess_rows = nullptr;
    std::uint32_t* guesses = nullptr;
    std::uint64_t* block = nullptr;                                     // cuda::BlockState
    static constexpr std::int64_t kGuessRowWords = 9, kGuessWords = 5;  // of 8 and of 4 bytes
    static constexpr std::int64_t kBlockWords = 128;                    // at most, of 8 bytes
    std::uint64_t* not_finite = nullptr;  // [1], with check_nan: ops::NotFinite, packed

    // The arrays that describe a batch, on the device.
    struct Arrays {
        std::int32_t *ids, *positions, *sequence;  // [tokens]
        std::int32_t* first;  // [2 (sequences + 1)]: of all parts, one after another
        std::int32_t* pages;  // [sequences, max_pages], ring tables
        std::int32_t* rows;   // [max_logits]: rows that get logits; targets
        // Where sequences may stream: [sequences, 2] sinks and window of each, and [sequences,
        // max_fronts] the pages of the sinks.
        std::int32_t *streams, *fronts;
    };
    Arrays pass{}, decode{};  // for given tokens, and for fed rows
    int max_pages = 0;        // entries of a sequence's table
    int max_fronts = 0;
    // For each fed row, [sequences, 2]: a page at or after the first number takes the table entry
    // of the page that lies the second number of pages before it (KvCache::Circle).
    std::int32_t* circles = nullptr;

    // Visits every buffer once: take(bytes) returns its address.
    template <typename Take>
    void each(const Model& model, const EngineOptions& options, Take&& take);
};

struct DeviceBuffers : DeviceTensors {
    std::span<std::byte> attention_scratch, gemm_scratch, linear_scratch;
    std::span<std::byte> step_programs;  // one for each number of rows, up to kStepRows

    static std::uint64_t activation_bytes(const Model& model, const EngineOptions& options);
    static std::uint64_t scratch_bytes(const Model& model, const EngineOptions& options);
    // Bytes that the engine allocates besides these: the sampler's rows and the timeline's stamps.
    static std::uint64_t beside_bytes(const Model& model, const EngineOptions& options);
    // Stages of a pass at most. GEMMs of many tokens have extra stamps before and after the
    // library's kernels.
    static std::size_t most_stages(const ModelSpec& spec) {
        return static_cast<std::size_t>(spec.layers) * 64 + 256;
    }

    void take(const Model& model, const EngineOptions& options);

  private:
    cuda::DeviceArena activations_, scratch_;
};

}  // namespace mr::model
