// The layers of a decode step as one kernel that stays on the device from the first product to the
// last.
//
// A decode step reads every weight once and computes little with it, so it is as fast as the
// weights flow. Kernel after kernel, the flow stops at each boundary: the last block ends, the next
// kernel starts, norms its input, asks for its first weights. Weights depend on nothing, though:
// here some warps of every block do nothing but ask for them, in the order in which they will be
// needed, through a ring in shared memory and across all boundaries. The other warps multiply.
// Where a product needs what another one made, the results of one token come as words that say
// themselves that they have come (step_link.cuh), and several tokens' blocks meet at a barrier of
// the whole grid; while they wait, the ring fills.
//
// The results have the bits of linear_small() and attention_decode(): the instructions and their
// order are the same, and so are the functions (small_input.cuh, small_finish.cuh,
// ops/attention/paged/decode.cuh; step_finish.cuh has one token's results in the order that suits
// it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/context.h"
#include "ops/attention/paged/attention.h"
#include "ops/batch/batch.h"
#include "ops/linear/linear_cuda.h"

namespace mr::cuda {

// Tokens in one step, at most: with 8, the kernels one by one are faster.
inline constexpr int kStepRows = 4;

struct StepLayer {
    LinearIn qkv, out, up, down;  // as they would go to linear_small(); rows are those of the step
    ops::PagedKv kv;
};
struct StepModel {
    std::vector<StepLayer> layers;
    LinearIn head = {};     // w none: the caller's
    bool parallel = false;  // `up` reads what `qkv` reads, not what `out` has made of it
    Tensor q, attn;         // [rows, heads, head_dim]
    ops::AttentionMask mask;
    float scale = 0;
    int keys = 0;  // that a sequence may have, at most
};

// Whether there is a kernel for this model on this device: products of one type, attention on
// tensor cores over a cache of the compute type, inputs that fit into shared memory.
bool step_takes(const StepModel& model);

// The blocks of a step wait for one another, so all must be on the device at once: two steps of one
// process, in two streams, could each have half of it and wait forever. Whoever has the turn may
// run steps; it is given back at the end.
class StepTurn {
  public:
    StepTurn() = default;
    ~StepTurn();
    StepTurn(const StepTurn&) = delete;
    StepTurn& operator=(const StepTurn&) = delete;
    bool take();  // false: another has it

  private:
    bool taken_ = false;
};

// What decides how much memory a program needs.
struct StepShape {
    int layers = 0;
    std::int64_t dim = 0, hidden = 0;
    std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
    int keys = 0;  // of a sequence, at most
    int rows = 1;
};

// What is constant about a step of so many rows: everything but lengths.
class StepProgram {
  public:
    // Device memory for a program.
    static std::size_t bytes(const StepShape& shape);
    // `memory` stays the program's. Copies once, and waits for it.
    StepProgram(const StepModel& model, std::span<std::byte> memory, const Stream& stream,
                Ledger* ledger);

    // x, in place, through all layers; then the head, if it has one. batch: that of the model's
    // qkv, with the keys of now. ctx.scratch: attention's.
    void run(const Context& ctx, const ops::DeviceBatch& batch) const;
    bool has_head() const { return model_.head.w.data != nullptr; }

  private:
    struct Product {
        OpKind kind;
        const char* name;
        OpRecord work;
    };
    StepModel model_;
    std::vector<Product> products_;  // in the order of the phases, for the account
    std::span<std::byte> memory_;
    int rows_ = 0, phases_ = 0;
    int blocks_ = 0, stages_ = 0;  // of the grid; of the ring
    int flight_ = 0;
    bool clear_ = false;  // the ring, before anything else
    bool words_ = false;  // one token, whose phases hand on words (step_link.cuh)
    std::byte* part_words_ = nullptr;
    std::size_t ring_bytes_ = 0, shared_bytes_ = 0;
};

}  // namespace mr::cuda
