// The layers of a decode step as one kernel that stays on the device from the first product to the
// last.
//
// A decode step reads every weight once and computes little with it, so memory bandwidth for the
// weights bounds it. With one kernel after the other the flow of weights stops at each boundary:
// the last block ends, the next kernel starts, norms its input and loads its first weights. Weights
// depend on no result, though. Here some warps of every block only load weights, in the order in
// which the products need them, into a ring buffer in shared memory and across all boundaries; if
// sequences stream, they load keys and values, too (step_view.cuh). The other warps multiply. Where
// a product needs the results of another, those of one token arrive as tagged words
// (step_link.cuh), and with several tokens the blocks meet at a barrier of the whole grid. While
// they wait, the ring fills.
//
// The results have the bits of linear_small() and attention_decode(), because the instructions,
// their order and the functions are the same (small_input.cuh, small_finish.cuh,
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

// The most tokens of a step: with 8, separate kernels are faster.
inline constexpr int kStepRows = 4;

struct StepLayer {
    LinearIn qkv, out, up, down;  // as for linear_small(); rows are those of the step
    ops::PagedKv kv;
};
struct StepModel {
    std::vector<StepLayer> layers;
    LinearIn head = {};     // without w: the caller computes it
    bool parallel = false;  // `up` reads the input of `qkv`, not the result of `out`
    Tensor q, attn;         // [rows, heads, head_dim]
    Tensor q_sinks = {};    // as q, if sequences stream with sinks: the queries for the sinks
    bool streams = false;   // sequences may stream
    ops::AttentionMask mask;
    float scale = 0;
    int keys = 0;  // most keys of a sequence, or key numbers of a stream's view
};

// Whether a kernel supports this model on this device: products of one type, attention on tensor
// cores over a cache of the compute type, inputs that fit into shared memory. Its blocks wait for
// each other: ctx.whole_device (DeviceTurn).
bool step_takes(const StepModel& model);

// The sizes that determine how much memory a program needs.
struct StepShape {
    int layers = 0;
    std::int64_t dim = 0, hidden = 0;
    std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
    int keys = 0;          // most keys of a sequence
    bool streams = false;  // StepModel::streams
    int rows = 1;
    int parts() const;
};

// Everything about a step of a given number of rows except the lengths of its sequences.
class StepProgram {
  public:
    // Device memory for a program.
    static std::size_t bytes(const StepShape& shape);
    // The program uses `memory` as long as it exists.
    // The constructor copies to it and waits.
    StepProgram(const StepModel& model, std::span<std::byte> memory, const Stream& stream,
                Ledger* ledger);

    // Takes x, in place, through all layers and then through the head, if the model has one. batch
    // is that of the model's qkv with the current number of keys; ctx.scratch is attention's.
    void run(const Context& ctx, const ops::DeviceBatch& batch) const;
    bool has_head() const { return model_.head.w.data != nullptr; }

  private:
    struct Product {
        OpKind kind;
        const char* name;
        OpRecord work;
    };
    StepModel model_;
    std::vector<Product> products_;  // in the order of the phases, for the ledger
    std::span<std::byte> memory_;
    int rows_ = 0, phases_ = 0;
    int blocks_ = 0, stages_ = 0;  // blocks of the grid; stages of the ring
    int flight_ = 0;
    bool clear_ = false;  // fill the ring with zeros first
    bool words_ = false;  // one token: phases pass on tagged words (step_link.cuh)
    std::byte* part_words_ = nullptr;
    std::size_t ring_bytes_ = 0, shared_bytes_ = 0;
};

}  // namespace mr::cuda
