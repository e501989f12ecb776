// What the kernel of a step is given, and who starts it.
#pragma once

#include "core/cuda/signal.cuh"
#include "ops/attention/paged/common.cuh"
#include "ops/linear/small_params.cuh"
#include "ops/step/step_ring.cuh"

namespace mr::cuda::step {

// Three groups of four warps: two multiply, the third fetches. Registers go from it to the others.
constexpr int kMultiplying = 32 * kWarps;  // threads
constexpr int kThreads = kMultiplying + 128;
constexpr int kFetchRegisters = 40, kMultiplyRegisters = 232;
constexpr int kTeams = kMultiplying / attn::kDecodeThreads;
constexpr int kMostStages = 32;
constexpr int kCommonBytes = 2048;  // what the kernel has in fixed shared memory, at most

// A product, or attention, of the program.
struct alignas(16) Phase {
    Params p;
    const void* keys;  // attention: of the layer; products: null
    const void* values;
    int first_block;  // the product's tile t belongs to block (first_block + t) % blocks
    // Several tokens: blocks meet at a barrier of the grid.
    bool wait;    // for all blocks' last arrival before anything is read that they wrote
    bool arrive;  // when done
    // One token: the row comes as words of the phase whose number is in_tag, and goes on as words;
    // what it is added to likewise. null: memory.
    const Word* in;
    const Word* residual;
    Word* out;
    int in_tag, residual_tag;
    bool half;  // a tile is 8 rows, and a stage twice as many of their columns
};
constexpr int kPhasePieces = sizeof(Phase) / 16;
static_assert(kPhasePieces <= kMultiplying);

struct Args {
    const Phase* phases;
    int count;
    int stages;         // of the ring
    int flight;         // stages of it that may be on their way at once
    int room;           // where the ring ends and the room of inputs and sums begins
    bool clear;         // some rows end inside of a granule: the ring must hold numbers
    unsigned* barrier;  // of the grid; one token: the tags' beginning, then who has ended
    const float* x;     // one token: what the step begins with, f32 [columns]
    Word* x_words;
    int columns;
    Word* part_words;      // TaggedLink
    Stamp* stamps;         // [count] or null
    attn::Args attention;  // keys and values: the phase's
    int tiles, parts;      // of rows; of keys, worked on at once
    int most_parts;        // that any sequence can have
};

// blocks: one a multiprocessor.
struct Start {
    int blocks, head_dim;
    bool one;  // token, and words between its phases
    std::size_t shared_bytes;
};
// R: how weights pass through the ring; T: the compute type. step_bf16.cu, step_f16.cu, step_q8.cu,
// step_q4.cu.
template <typename R, typename T>
void start(const Context& ctx, const Start& start, const Args& args);

// f with the width of a head, where there is a kernel for it.
template <typename F>
bool with_head_dim(int head_dim, F&& f) {
    switch (head_dim) {
        case 64:
            return f(std::integral_constant<int, 64>{}), true;
        case 80:
            return f(std::integral_constant<int, 80>{}), true;
        case 128:
            return f(std::integral_constant<int, 128>{}), true;
        default:
            return false;
    }
}

}  // namespace mr::cuda::step
