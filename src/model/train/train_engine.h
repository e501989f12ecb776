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

// The stage of a pipeline that an engine is.
struct PipelineStage {
    std::vector<int> layers{};  // of every stage; empty: there is no pipeline
    int stage = 0;
    int on_their_way = 1;       // passes between their forward and their backward, at most
    StageLink* link = nullptr;  // outlives the engine

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
    // Matrices and tables are kept in bf16, rounded by chance at every step (ops::AdamW), instead
    // of f32. Where they are computed with in bf16 that is the only copy of them.
    bool bf16_masters = false;
    // A step is a sum over grains: those of this rank, a power of two, in a binary tree, and then
    // over ranks (`exchange`, which outlives the engine; null: there is one rank).
    int grains = 1;
    // Sums do not depend on where a pipeline would be cut. A tied table has two gradients, of the
    // head and of the tokens: each is summed over all grains by itself, and then both are added, so
    // that two ranks can hold one each. No layer adds to a bias of another one (PassStage). False:
    // tokens are added to what the head has, one after the other, which the ends of a pipeline
    // cannot.
    bool apart = false;
    GradExchange* exchange = nullptr;
    // What of the state ranks share. 1: each has the moments of its own share of the parameters; 2:
    // and the gradients of it (grad_shards.h; `grains` are every ranks()th then); 3: and the
    // parameters themselves (param_shards.h), so that none has all of them.
    int zero = 0;
    // Layers in stages: `exchange` is with the replicas of this one, which share moments at most.
    PipelineStage pipeline{};

    int ranks() const { return exchange ? exchange->ranks() : 1; }
    int rank() const { return exchange ? exchange->rank() : 0; }
    int stage() const { return ranks() > 1 ? zero : 0; }  // of ZeRO
};

class TrainEngine {
  public:
    // What it will hold on its device. Both throw where heads are not trainable (train_ops.h).
    static MemoryPlan plan(const ModelSpec& spec, const TrainEngineOptions& options);
    // Throws Error (device) with what would fit where the plan does not.
    TrainEngine(const ModelSpec& spec, const TrainEngineOptions& options);
    ~TrainEngine();

    const ModelSpec& spec() const { return layout_.spec; }
    // Of all parameters, whichever this rank has.
    const ParamLayout& layout() const { return whole_; }
    const TrainEngineOptions& options() const { return options_; }
    const MemoryPlan& plan() const { return plan_; }
    TrainOps& ops() { return *ops_; }
    // What passes read, on the device: matrices in ops().compute_type(), the rest f32. They stay
    // where they are as long as this lives; where ranks share parameters they come and go there.
    const Weights& weights() const { return weights_; }
    Ledger& ledger() { return ops_->ledger(); }
    ThreadPool& pool() { return ops_->pool(); }

    // Both are made tensor by tensor, of which this rank keeps what it has.
    void init(std::uint64_t seed);
    void load(const Model& model);  // expanded to f32
    // The same of a model with this spec, whose tensors are read one after the other.
    void load(const ModelSpec& spec, const std::function<RoleTensor(RoleAt)>& read);
    // All three, f32 [layout().count]; any may be null. bf16 masters are rounded to nearest here.
    void set_state(const float* params, const float* m, const float* v);
    void get_state(float* params, float* m, float* v);

    // One of the three in host memory, [layout().count]: the parameters themselves where they lie
    // there, else a copy that the next call writes over.
    enum class State { params, m, v };
    const float* host(State state);
    // Elements [begin, end) of one of the three. Where ranks share it, this is the first rank, and
    // the others are in serve(), until it says end_serving(). All of them do so.
    void read(State state, std::int64_t begin, std::int64_t end, float* to);
    // The other way: this rank keeps what it has of them. Parameters are written from the first
    // element to the last.
    void write(State state, std::int64_t begin, std::int64_t end, const float* from);
    // Of all parameters as they were written last, in their order (state_hash.h), whether this
    // rank keeps them or not.
    std::uint64_t params_hash() const { return written_.value(); }
    void serve();
    void end_serving();
    bool shares_state() const { return shares(State::m); }
    bool shares(State state) const { return options_.pipeline.piped() || in_shares(state); }

    // The batch in ops().host_slot(slot) goes to the device. `counted`: how many targets it has,
    // where shape.block > 0 (SlotParts); else all.
    void put(int slot, std::int64_t counted = -1);
    // Of the batch that was put there last.
    std::int64_t counted(int slot) const { return counted_[static_cast<std::size_t>(slot)]; }
    // Adds gradients and losses of the slot's batch. `scale`: what a token's loss counts, 1 / the
    // targets of the whole step. `ends_grain`: it is the last pass of its grain. With the last pass
    // of the step, gradients go to the exchange as soon as they are whole; where ranks share
    // gradients, with every pass, each of which is a grain.
    void accumulate(int slot, double scale, bool ends_grain = true);
    // The two halves of accumulate(). In a pipeline as many forwards may come before a backward as
    // there are passes on their way; both are in the order of the passes. `more`: another one of
    // the step follows, which other stages may have sent already.
    void forward(int slot, bool more = false);
    void backward(double scale, bool ends_grain, bool more = false);
    // The optimizer's step by what was accumulated; then gradients are 0 again. Where the
    // gradient's norm is not finite nothing changes, and `skipped` says so.
    struct StepResult {
        double loss = 0;       // mean over what was accumulated, nats per token
        double grad_norm = 0;  // before clipping
        bool skipped = false;
    };
    StepResult update(const ops::AdamW& with);
    // The sum of losses of the slot's batch, nats; in a pipeline 0 but for the last stage. Where
    // ranks share parameters, all of them call this as often. `more` as above.
    double evaluate(int slot, bool more = false);
    // The losses of the last pass, [counted].
    void read_losses(std::span<float> out);
    // The gradients since the last update, f32 [layout().count]: for tests. Where ranks do not
    // share them.
    void read_grads(std::span<float> out);

    // FLOPs of a step's products and attention, forward and backward, without recomputation.
    static std::uint64_t flops_per_token(const ModelSpec& spec, int seq);
    // Of those, what recomputation does once more.
    static std::uint64_t remade_flops_per_token(const ModelSpec& spec, int seq,
                                                Recompute recompute);
    // What the plan would need more without recomputation.
    std::uint64_t bytes_saved_by_recompute() const;

  private:
    ParamLayout whole_;
    ParamLayout layout_;  // of what this stage has
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
    // Replicas have their shares of it alone.
    bool in_shares(State state) const {
        return options_.stage() > 0 && (state != State::params || options_.stage() == 3);
    }
    PassHooks hooks(bool last);
    void pass_forward(int slot, bool more, const PassHooks& hooks);
    std::int64_t whole_of(std::int64_t element) const;

    // Of a pipeline (train_engine_stage.cpp).
    bool first_stage() const { return span_.first(); }
    bool last_stage() const { return span_.last(layout_.spec); }
    // The table of a tied model, of which this end has a copy beside another stage's.
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
    // Of elements of this stage.
    void read_own(State state, std::int64_t begin, std::int64_t end, float* to);
    void write_own(State state, std::int64_t begin, std::int64_t end, const float* from);

    // Flat [count]. Where copy_ is the only one of matrices, params_ is the rest, from element
    // `decayed` on. Where ranks share parameters, both have this rank's shares of matrices alone,
    // which lie end to end, and params_ behind them the rest, all of it.
    Tensor params_, copy_, m_, v_;
    // Where an element of the whole lies in m_ and v_, and in params_, or copy_ where that is the
    // only one; this rank has it.
    std::int64_t own_at(std::int64_t element) const;
    std::int64_t param_at(std::int64_t element) const;
    void read_here(State state, std::int64_t begin, std::int64_t end, float* to);
    UnitPieces units_;
    std::unique_ptr<GradShards> grad_shards_;    // none: every rank has all gradients
    std::unique_ptr<ParamShards> param_shards_;  // none: ... all parameters
    // Gradients: one buffer that passes add to, and one for every level of the tree over grains.
    // Behind the parameters' gradients, where `apart`, is that of the tokens.
    std::vector<Tensor> grads_;
    std::vector<Weights> grad_views_;  // of each
    std::size_t leaf_ = 0;             // which of them passes add to
    std::vector<std::size_t> levels_;  // those with sums of 1, 2, 4, ... grains; or kNone
    static constexpr std::size_t kNone = ~std::size_t{0};
    int grain_ = 0;  // of the step, from 0
    std::vector<ParamRange> ranges_;
    std::vector<comm::Shards> shards_;  // of each, where ranks share it
    // What this rank has of the moments: elements of the whole, and where they lie here.
    struct Share {
        std::int64_t begin, end, at;
    };
    std::vector<Share> own_;
    static std::vector<Share> shares_of(const std::vector<ParamRange>& ranges,
                                        const std::vector<comm::Shards>& shards, int rank);
    std::vector<std::int64_t> host_cuts_;  // of blocks
    std::int64_t block_at(std::int64_t element) const;
    std::int64_t tokens_at_ = -1, tokens_count_ = 0;  // of the tokens' gradient; -1: not apart
    std::int64_t* cuts_ = nullptr;                    // on the device, as are the next
    double* squares_ = nullptr;                       // of blocks
    std::int64_t blocks_ = 0;
    bool slim_ = false;       // copy_ is
    double* sums_ = nullptr;  // on the device: of losses of each grain, of squares of gradients
    double scale_ = 0;        // of the losses
    std::vector<std::int64_t> counted_;  // by slot
    std::int64_t last_counted_ = 0;      // of the last pass
    Tensor last_losses() const { return {pass_->losses().data, DType::f32, {last_counted_}}; }
    std::vector<float> host_;
    StateHash written_;

    StageSpan span_;
    int forwards_ = 0, backwards_ = 0, evaluated_ = 0;  // of the step, of the validation
    std::vector<int> slots_;                            // of the passes on their way
    // Of what was asked for or sent last, and of the one before.
    using Tickets = std::array<StageLink::Ticket, 2>;
    Tickets inputs_{}, outputs_{}, gradients_in_{}, gradients_out_{};
    Tensor other_table_;  // the gradient of the table at the other end
    std::vector<std::vector<ParamRange>> stage_ranges_;  // of every stage, as it has them
    // Of every stage, the blocks whose squares it has, by their number in the whole.
    std::vector<std::vector<std::int64_t>> stage_blocks_;
    std::vector<std::int64_t> counted_blocks_;  // of this stage: their numbers here
    double* whole_squares_ = nullptr;           // on the device, of all blocks of the whole
    std::int64_t whole_blocks_ = 0;
    Weights weights_;
    std::unique_ptr<TrainPass> pass_;
};

}  // namespace mr::model
