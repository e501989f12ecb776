// A model in training on one device: parameters, gradients, moments, and the pass over them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/arena.h"
#include "model/io/source.h"
#include "model/train/grad_exchange.h"
#include "model/train/grad_shards.h"
#include "model/train/param_shards.h"
#include "model/train/params.h"
#include "model/train/stage_link.h"
#include "model/train/state_hash.h"
#include "model/train/train_ops.h"
#include "model/train/train_pass.h"

namespace mr::model {

// The pipeline stage of an engine.
struct PipelineStage {
    std::vector<int> layers{};  // per stage; empty: no pipeline
    int stage = 0;
    int on_their_way = 1;       // passes between their forward and their backward, at most
    StageLink* link = nullptr;  // must outlive the engine

    bool piped() const { return layers.size() > 1; }
    int stages() const { return piped() ? static_cast<int>(layers.size()) : 1; }
    StageSpan span(int of) const;
    StageSpan span() const { return span(stage); }
};

struct TrainEngineOptions {
    bool cuda = false;
    int threads = 0;  // 0: all cores
    TrainShape shape;
    Recompute recompute = Recompute::none;
    // Matrices and tables are kept in bf16, with stochastic rounding at every step (ops::AdamW),
    // instead of f32. If GEMMs are in bf16, this is their only copy.
    bool bf16_masters = false;
    // A step is a sum over grains: this rank's grains, a power of two, in a binary tree, and then
    // over ranks (`exchange`, which must outlive the engine; null: one rank).
    int grains = 1;
    // Sums do not depend on where a pipeline would be cut. A tied table has two gradients, of the
    // head and of the tokens: each is summed over all grains separately, and then both are added,
    // so that two ranks can hold one each. No layer adds to a bias of another one (PassStage).
    // False: tokens' gradients are added to the head's one after another, which the ends of a
    // pipeline cannot do.
    bool apart = false;
    GradExchange* exchange = nullptr;
    // What ranks shard. 1: each has the moments of its own share of the parameters; 2: and the
    // gradients of its share (grad_shards.h; `grains` are then every ranks()th); 3: and the
    // parameters (param_shards.h), so that no rank has all of them.
    int zero = 0;
    // Layers in stages: `exchange` connects the replicas of this stage, which shard moments at
    // most.
    PipelineStage pipeline{};

    int ranks() const { return exchange ? exchange->ranks() : 1; }
    int rank() const { return exchange ? exchange->rank() : 0; }
    int stage() const { return ranks() > 1 ? zero : 0; }  // ZeRO stage
};

class TrainEngine {
  public:
    // Its device memory. Both throw if heads are not trainable (train_ops.h).
    static MemoryPlan plan(const ModelSpec& spec, const TrainEngineOptions& options);
    // Throws Error (device) with what would fit if the plan does not.
    TrainEngine(const ModelSpec& spec, const TrainEngineOptions& options);
    ~TrainEngine();

    const ModelSpec& spec() const { return layout_.spec; }
    // The layout of all parameters, including those of other ranks.
    const ParamLayout& layout() const { return whole_; }
    const TrainEngineOptions& options() const { return options_; }
    const MemoryPlan& plan() const { return plan_; }
    TrainOps& ops() { return *ops_; }
    // The weights that passes read, on the device: matrices in ops().compute_type(), the rest f32.
    // Their addresses never change; where ranks shard parameters, their content is only there while
    // a pass needs it.
    const Weights& weights() const { return weights_; }
    Ledger& ledger() { return ops_->ledger(); }
    ThreadPool& pool() { return ops_->pool(); }

    // Both work tensor by tensor, and this rank keeps its own part.
    void init(std::uint64_t seed);
    void load(const Model& model);  // expanded to f32
    // The same for a model with this spec, whose tensors are read one after another.
    void load(const ModelSpec& spec, const std::function<RoleTensor(RoleAt)>& read);
    // Sets all three, f32 [layout().count]; any may be null. bf16 masters are rounded to nearest
    // here.
    void set_state(const float* params, const float* m, const float* v);
    void get_state(float* params, float* m, float* v);

    // One of the three in host memory, [layout().count]: the parameters themselves if they lie
    // there, else a copy that the next call overwrites.
    enum class State { params, m, v };
    const float* host(State state);
    // Reads elements [begin, end) of one of the three. Where ranks shard it, only the first rank
    // calls this, while the others are in serve() until end_serving(). All ranks must take part.
    void read(State state, std::int64_t begin, std::int64_t end, float* to);
    // The inverse: this rank keeps its own part of them. Parameters must be written from the first
    // element to the last.
    void write(State state, std::int64_t begin, std::int64_t end, const float* from);
    // Hash of all parameters as last written, in order (state_hash.h), including those that other
    // ranks keep.
    std::uint64_t params_hash() const { return written_.value(); }
    void serve();
    void end_serving();
    bool shares_state() const { return shares(State::m); }
    bool shares(State state) const { return options_.pipeline.piped() || in_shares(state); }

    // Sends the batch in ops().host_slot(slot) to the device. `counted`: its number of targets, if
    // shape.block > 0 (SlotParts); else all.
    void put(int slot, std::int64_t counted = -1);
    // `counted` of the batch last put there.
    std::int64_t counted(int slot) const { return counted_[static_cast<std::size_t>(slot)]; }
    // Adds gradients and losses of the slot's batch. `scale`: the weight of a token's loss, 1 / the
    // targets of the whole step. `ends_grain`: it is the last pass of its grain. In the last pass
    // of the step, gradients go to the exchange as soon as they are complete; where ranks shard
    // gradients, in every pass, each of which is a grain.
    void accumulate(int slot, double scale, bool ends_grain = true);
    // The two halves of accumulate(). In a pipeline, up to on_their_way forwards may precede a
    // backward; both run in the order of the passes. `more`: another pass of the step follows,
    // which other stages may have sent already.
    void forward(int slot, bool more = false);
    void backward(double scale, bool ends_grain, bool more = false);
    // The optimizer's step with the accumulated gradients, which become 0 again. If the gradient's
    // norm is not finite, nothing changes, and `skipped` is set.
    struct StepResult {
        double loss = 0;       // mean of the accumulated losses, nats per token
        double grad_norm = 0;  // before clipping
        bool skipped = false;
    };
    StepResult update(const ops::AdamW& with);
    // The sum of losses of the slot's batch, nats; in a pipeline 0 except on the last stage. Where
    // ranks shard parameters, all must call this equally often. `more` as above.
    double evaluate(int slot, bool more = false);
    // The losses of the last pass, [counted].
    void read_losses(std::span<float> out);
    // The gradients since the last update, f32 [layout().count]: for tests, where ranks do not
    // shard them.
    void read_grads(std::span<float> out);

    // FLOPs of a step's GEMMs and attention per token, forward and backward, without recomputation.
    static std::uint64_t flops_per_token(const ModelSpec& spec, int seq);
    // FLOPs per token of the recomputation.
    static std::uint64_t remade_flops_per_token(const ModelSpec& spec, int seq,
                                                Recompute recompute);
    // Additional bytes that the plan would need without recomputation.
    std::uint64_t bytes_saved_by_recompute() const;

  private:
    ParamLayout whole_;
    ParamLayout layout_;  // this stage's parameters
    TrainEngineOptions options_;
    MemoryPlan plan_;
    std::unique_ptr<TrainOps> ops_;
    void write_params(std::int64_t begin, std::int64_t end, const float* from);
    void write_entries(const std::function<void(const ParamLayout::Entry& entry, float* to)>& make);
    Tensor& leaf() { return grads_[leaf_]; }
    Tensor part(Tensor flat, std::int64_t begin, std::int64_t end) const;
    void close_grain();
    void complete(int unit);
    void add_tokens();
    double* add_squares(Tensor grads);
    std::vector<double> gather_losses(const std::vector<double>& mine);
    std::vector<double> gather_squares(const std::vector<double>& made);
    void step_shares(const ops::AdamW& with, Tensor grads, const double* norm);
    void take_state();
    void take_blocks();
    bool shares_grads() const { return grad_shards_ != nullptr; }
    // Whether replicas hold only their shares of it.
    bool in_shares(State state) const {
        return options_.stage() > 0 && (state != State::params || options_.stage() == 3);
    }
    PassHooks hooks(bool last);
    void pass_forward(int slot, bool more, const PassHooks& hooks);
    std::int64_t whole_of(std::int64_t element) const;

    // For a pipeline (train_engine_stage.cpp).
    bool first_stage() const { return span_.first(); }
    bool last_stage() const { return span_.last(layout_.spec); }
    // Whether this end has a copy of a tied model's table, besides another stage's.
    bool has_table_copy() const {
        return options_.pipeline.piped() && layout_.spec.tied_embeddings &&
               (first_stage() || last_stage());
    }
    void find_blocks();
    void await_input(int number, bool more);
    void ask_for_gradient();
    void send_output(int number);
    void await_gradient(int number, bool more);
    void send_gradient(int number);
    void end_passes();
    void add_other_table();
    void add_squares_of_stages(double* norm);
    void read_stages(State state, std::int64_t begin, std::int64_t end, float* to);
    void serve_stages();
    // For elements of this stage.
    void read_own(State state, std::int64_t begin, std::int64_t end, float* to);
    void write_own(State state, std::int64_t begin, std::int64_t end, const float* from);

    // Flat [count]. If copy_ is the only copy of matrices, params_ holds the rest, from element
    // `decayed` on. Where ranks shard parameters, both hold only this rank's shares of matrices,
    // end to end, and params_ the rest after them, unsharded.
    Tensor params_, copy_, m_, v_;
    // The index of an element of the whole in m_ and v_, and in params_ (or copy_ if that is the
    // only copy); this rank must have it.
    std::int64_t own_at(std::int64_t element) const;
    std::int64_t param_at(std::int64_t element) const;
    void read_here(State state, std::int64_t begin, std::int64_t end, float* to);
    UnitPieces units_;
    std::unique_ptr<GradShards> grad_shards_;    // none: every rank has all gradients
    std::unique_ptr<ParamShards> param_shards_;  // none: ... all parameters
    // Gradients: one buffer that passes add to, and one for every level of the tree over grains. If
    // `apart`, the tokens' gradient follows the parameters'.
    std::vector<Tensor> grads_;
    std::vector<Weights> grad_views_;  // of each of grads_
    std::size_t leaf_ = 0;             // index of the buffer that passes add to
    std::vector<std::size_t> levels_;  // those with sums of 1, 2, 4, ... grains; or kNone
    static constexpr std::size_t kNone = ~std::size_t{0};
    int grain_ = 0;  // number of the grain in the step, from 0
    std::vector<ParamRange> ranges_;
    std::vector<comm::Shards> shards_;  // of each range, where ranks shard it
    // This rank's part of the moments: elements of the whole, and their place here.
    struct Share {
        std::int64_t begin, end, at;
    };
    std::vector<Share> own_;
    static std::vector<Share> shares_of(const std::vector<ParamRange>& ranges,
                                        const std::vector<comm::Shards>& shards, int rank);
    std::vector<std::int64_t> host_cuts_;  // starts of the blocks
    std::int64_t block_at(std::int64_t element) const;
    std::int64_t tokens_at_ = -1, tokens_count_ = 0;  // the tokens' gradient; -1: not apart
    std::int64_t* cuts_ = nullptr;                    // on the device, as are the next
    double* squares_ = nullptr;                       // one per block
    std::int64_t blocks_ = 0;
    bool slim_ = false;       // copy_ is the only copy of matrices
    double* sums_ = nullptr;  // on the device: losses of each grain, squares of gradients
    double scale_ = 0;        // of the losses' gradient
    std::vector<std::int64_t> counted_;  // by slot
    std::int64_t last_counted_ = 0;      // of the last pass
    Tensor last_losses() const { return {pass_->losses().data, DType::f32, {last_counted_}}; }
    std::vector<float> host_;
    StateHash written_;

    StageSpan span_;
    int forwards_ = 0, backwards_ = 0, evaluated_ = 0;  // passes of the step; of the validation
    std::vector<int> slots_;                            // of the passes in flight
    // Tickets of the last request or send, and of the one before.
    using Tickets = std::array<StageLink::Ticket, 2>;
    Tickets inputs_{}, outputs_{}, gradients_in_{}, gradients_out_{};
    Tensor other_table_;                                 // gradient of the table from the other end
    std::vector<std::vector<ParamRange>> stage_ranges_;  // ranges of every stage
    // For every stage, the blocks whose squares it computes, by their number in the whole.
    std::vector<std::vector<std::int64_t>> stage_blocks_;
    std::vector<std::int64_t> counted_blocks_;  // this stage's, by their numbers here
    double* whole_squares_ = nullptr;           // on the device, for all blocks of the whole
    std::int64_t whole_blocks_ = 0;
    Weights weights_;
    std::unique_ptr<TrainPass> pass_;
};

}  // namespace mr::model
