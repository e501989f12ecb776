// The arguments of a step's kernel, and its launch.
#pragma once

#include "core/cuda/signal.cuh"
#include "ops/attention/paged/common.cuh"
#include "ops/linear/small_params.cuh"
#include "ops/step/step_ring.cuh"

namespace mr::cuda::step {

// Three warp groups: two multiply, the third loads and gives registers to the others.
constexpr int kMultiplying = 32 * kWarps;  // threads
constexpr int kThreads = kMultiplying + 128;
constexpr int kFetchRegisters = 40, kMultiplyRegisters = 232;
constexpr int kFetchKeysRegisters = 72, kMultiplyKeysRegisters = 216;  // if keys are loaded, too
constexpr int kTeams = kMultiplying / attn::kDecodeThreads;
constexpr int kMostStages = 32;
constexpr int kCommonBytes = 2048;  // upper bound on the kernel's static shared memory

// A phase of the program: a product or attention.
struct alignas(16) Phase {
    Params p;
    const void* keys;  // attention: the layer's; products: null
    const void* values;
    int first_block;  // the product's tile t belongs to block (first_block + t) % blocks
    // Several tokens: blocks meet at a barrier of the grid.
    bool wait;    // for all blocks' last arrival before reading what they wrote
    bool arrive;  // when done
    // One token: the input row arrives as words of phase in_tag, the residual as words of phase
    // residual_tag, and the results leave as words. null: through memory.
    const Word* in;
    const Word* residual;
    Word* out;
    int in_tag, residual_tag;
    bool half;  // a tile has 8 rows, and a stage twice the columns
};
constexpr int kPhasePieces = sizeof(Phase) / 16;
static_assert(kPhasePieces <= kMultiplying);

struct Args {
    const Phase* phases;
    int count;
    int stages;         // of the ring
    int flight;         // the most stages in flight
    int room;           // offset after the ring: the room of inputs and sums
    bool clear;         // rows end inside a granule: the ring must hold no NaN
    unsigned* barrier;  // of the grid; one token: first tag, and number of blocks that have ended
    const float* x;     // one token: the input of the step, f32 [columns]
    Word* x_words;
    int columns;
    Word* part_words;      // TaggedLink
    Stamp* stamps;         // [count] or null
    attn::Args attention;  // keys and values come from the phase
    int tiles, parts;      // tiles of rows; parts of keys, in parallel
    int most_parts;        // of any sequence
};

// blocks: one per multiprocessor.
struct Start {
    int blocks, head_dim;
    bool one;      // one token, with words between its phases
    bool streams;  // sequences may stream
    std::size_t shared_bytes;
};
// R: the ring's layout of weights; T: the compute type. Instantiated in step_bf16.cu, step_f16.cu,
// step_q8.cu and step_q4.cu.
template <typename R, typename T>
void start(const Context& ctx, const Start& start, const Args& args);

// Calls f with head_dim as a constant if there is a kernel for it.
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
