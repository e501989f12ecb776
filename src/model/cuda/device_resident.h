// The engine on the device: weights, cache, activations and sampler stay there.
// device_engine_cuda.cpp computes the layers, device_given_cuda.cpp runs passes of given tokens,
// device_guess_cuda.cpp makes guesses, device_decode.cu runs fed rows, device_fill_cuda.cpp fills
// in diffusion blocks.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "core/cuda/device_turn.h"
#include "core/cuda/loop.h"
#include "core/cuda/timeline.h"
#include "core/recent_map.h"
#include "model/cuda/device_buffers.h"
#include "model/cuda/device_engine.h"
#include "model/cuda/device_products.h"
#include "ops/denoise/block_cuda.h"
#include "ops/linear/linear_cuda.h"
#include "ops/norm/norm_cuda.h"
#include "ops/sample/adjust_cuda.h"
#include "ops/sample/sample_cuda.h"
#include "ops/step/step_cuda.h"

namespace mr::model {

// Sets a variable for the length of a scope, exceptions included.
template <typename T>
class Meanwhile {
  public:
    Meanwhile(T& at, T value) : at_(at), before_(std::exchange(at, value)) {}
    ~Meanwhile() { at_ = before_; }
    Meanwhile(const Meanwhile&) = delete;
    Meanwhile& operator=(const Meanwhile&) = delete;

  private:
    T& at_;
    T before_;
};

// Pinned memory through which small arrays go to the device. It has two halves: one is filled while
// the other may still be in flight.
class Staging {
  public:
    Staging() = default;
    explicit Staging(std::size_t ints) : memory_(2 * ints * sizeof(std::int32_t)), ints_(ints) {}

    // Everything sent until end() uses one half.
    void begin() {
        half_ = 1 - half_;
        used_ = 0;
        sent_[half_].synchronize();
    }
    // Room for `count` numbers.
    std::int32_t* take(std::size_t count);
    void end(const cuda::Stream& stream) { stream.record(sent_[half_]); }

  private:
    cuda::PinnedBuffer memory_;
    std::array<cuda::Event, 2> sent_;
    std::size_t ints_ = 0, used_ = 0, half_ = 0;
};

class Resident final : public Engine {
  public:
    Resident(std::shared_ptr<const Model> model, std::shared_ptr<const DeviceWeights> weights,
             const EngineOptions& options);
    ~Resident() override;

    Slot open_slot(SeqId seq, const DrawParams& params) override;
    void close_slot(Slot slot) override;
    void draw(Tensor logits, std::span<const Slot> slots) override;
    ops::Sampled wait(Slot slot, std::uint64_t number) override;
    bool ready(Slot slot, std::uint64_t number) override;
    ops::DrawnLogprobs logprobs(Slot slot, std::uint64_t number) override;
    bool takes_block(const OpenBlock& open) const override;
    void open_block(const OpenBlock& open) override;
    bool block_is_open(SeqId seq) const override { return fill_.open && fill_.seq == seq; }
    FilledBlock fill_block() override;
    ForwardTimes time_forward() override;
    void cross_entropy(std::span<double> nll, Tensor logits,
                       std::span<const std::int32_t> targets) override;
    Tensor to_host(Tensor logits) override;
    Tensor head_input(std::int64_t rows);
    void copy_page(std::int32_t to, std::int32_t from) override;
    void synchronize() override { stream_.synchronize(); }
    // Two steps keep the device busy while a token is printed; steps ahead are wasted if a
    // generation ends early. With check_nan a step ends before the next begins, so that tokens
    // before a NaN are still read.
    int ahead() const override { return watched_ || options_.check_nan ? 0 : 2; }
    std::int64_t cut() const override { return kCut; }
    void watch(bool on) override { watched_ = on; }
    std::vector<Stage> take_stages() override { return std::exchange(stages_, {}); }
    std::uint64_t stage_bytes() const override { return sizeof(cuda::Stamp); }
    bool one_kernel() const override { return program(static_cast<int>(rows_.size())) != nullptr; }
    StepLaunches step_launches(int rows, std::int64_t keys) override;

    // Captured blocks to keep, least recently used out first. Whole blocks need two for each bound
    // of the keys they see (the first block of a text, and a later one), 16 up to a context of
    // 32,768. The last block of a text has any length, so texts of all lengths would need as many
    // again for each of them: such graphs are evicted and captured again. So are those of full
    // attention, where every length of a text has its own graph, and with a prefix cache every
    // block.
    static constexpr std::size_t kMostFills = 32;
    std::size_t captured_fills() const { return fills_.size(); }
    std::uint64_t captured_passes() const { return captured_passes_; }  // launched ones

  private:
    // Rows [first, first + batch.tokens) of the activations, all of one form and mask.
    struct Part {
        ops::DeviceBatch batch;
        std::int64_t first = 0;
        bool few = true;                           // the decode form
        std::optional<ops::AttentionMask> mask{};  // of all its items; none: the layers' own
        Stream stream{};                           // of all its items, in the prompt form
    };
    // A slot, and where its newest draws are: the sampler's row and the step in it.
    struct DeviceSlot {
        struct Draw {
            int row = 0;
            std::uint64_t step = 0;
        };
        bool open = false;
        SeqId seq = 0;
        DrawParams params;
        int row = -1;  // its fed row; -1: none
        std::uint64_t draws = 0;
        std::array<Draw, 32> where;  // by number
    };
    // The key of a captured step.
    struct StepKey {
        int rows;
        int keys;  // a power of two, or the context
        // cuda::SampleKind; -1: sampling outside the graph, for large steps and adjusted
        // rows.
        int kind;
        auto operator<=>(const StepKey&) const = default;
    };
    struct Captured {
        cuda::Graph graph;
        Ledger ledger;
    };
    // The text that is being filled in, on the host's side.
    struct Fill {
        bool open = false;
        SeqId seq = 0;
        bool apart = false, filtered = false;  // filtered: its draws are filtered
        int block = 0, before = 0;             // places of a block; tokens before it, as in FillKey
        // With full attention: the text keeps what lies before a block (OpenBlock::keeps), and the
        // next pass is the one that computes it.
        bool keeps = false, refresh = false;
        std::int64_t start = 0, end = 0, size = 0;
        std::uint64_t progress = 0;  // of cuda::BlockReport
        std::optional<ops::AttentionMask> mask{};
    };
    // The key of a captured block. `before`: tokens that the first pass commits; with full
    // attention, tokens that are kept in the cache.
    struct FillKey {
        int before, places;
        int keys;  // a power of two, or the context; where attention is full, tokens of the text
        int block;
        bool apart;  // the first pass only commits; where attention is full, it computes what is
                     // kept
        bool filtered;
        auto operator<=>(const FillKey&) const = default;
    };
    // The key of a captured pass with guesses: one part, in the decode form.
    struct GuessKey {
        int tokens, sequences, most;  // rows; items; rows of an item, at most
        int keys;                     // a power of two, or the context
        int block;                    // block of the items' mask; -1: the layers' own
        std::int64_t plain, count;    // unfiltered places, and all
        auto operator<=>(const GuessKey&) const = default;
    };
    // The first pass (or two: one that only commits) and the following ones, in one graph, or each
    // in its own.
    struct CapturedFill {
        cuda::LoopGraph loop;
        Captured first, again;
        std::vector<std::pair<int, int>> first_passes;  // `before`, as in FillKey, and places
    };

    Tensor run(const Pass& pass) override;
    void run(const Pass& pass, std::span<const Place> places, std::span<ops::Guess> out) override;
    DeviceSlot& at(Slot slot);
    const DeviceSlot::Draw& draw_of(Slot slot, std::uint64_t number);

    // Given tokens.
    ops::DeviceBatch upload(const Pass& pass, std::span<const std::size_t> items,
                            std::int64_t first_row, int first_seq, std::int32_t* first, bool few);
    std::vector<std::int64_t> run_parts(const Pass& pass);
    Tensor run_given(const Pass& pass);
    // Guesses.
    bool is_filtered(const Place& place) const {
        return ops::draw_is_filtered(*place.sampling, spec_.vocab, place.truth);
    }
    bool makes_records() const;
    void send_places(std::span<const Place> places, std::span<const std::size_t> order);
    const std::vector<cuda::DeviceGuess>& read_guesses(std::size_t count);
    void head_guesses(Tensor x, std::int64_t first, bool filtered);
    bool guesses_in_one_launch(const Pass& pass) const;
    void launch_guesses(std::int64_t plain, std::int64_t count);
    void run_captured(const Pass& pass, const Part& part, std::int64_t plain, std::int64_t count);
    // Blocks.
    const CapturedFill& captured(const FillKey& key);
    void warm_up(const FillKey& key, int before);
    struct BlockPass {
        cuda::BlockRows rows;
        Part part;
        int first_asked = 0;  // row of the first logits, if their rows are adjacent
    };
    FillKey fill_key() const;
    std::vector<std::pair<int, int>> first_passes(const FillKey& key) const;
    BlockPass block_pass(const FillKey& key, int before, int places) const;
    void launch_block_layers(const BlockPass& pass);
    Tensor asked_rows(const BlockPass& pass);
    void launch_block_pass(const FillKey& key, int before, int places, cuda::LoopGraph::Loop loop);
    void wait_for_passes(std::uint64_t blocks, std::uint64_t passes);
    // Where sequences may stream: sends the stream of a sequence to row `row` of the arrays; the
    // batch of rows from `first` on; and the rotations of its rows.
    void send_stream(SeqId seq, const DeviceBuffers::Arrays& to, int row);
    void add_streams(ops::DeviceBatch& batch, const DeviceBuffers::Arrays& from, int first) const;
    void rotations_of(const Part& part);
    void run(const Part& part);
    void attention_in(const Part& part, int layer);
    bool mlp_in(const Part& part, int layer);
    void heads(Tensor logits, Tensor x, bool few);
    void add_product(cuda::LinearIn in, const Part& part);
    void norm_of_sum(cuda::NormPass pass);
    void add_apart(Tensor x);
    void product(const cuda::LinearIn& in, bool few);
    void product(Tensor out, Tensor x, Tensor w, Tensor bias, bool few, const char* name,
                 OpKind kind = OpKind::linear);
    void linear(const cuda::LinearIn& in) {
        ctx_.scratch = buffers_.linear_scratch;
        cuda::linear_small(ctx_, in);
    }
    const LayerWeights& weights_of(int layer) const {
        return weights_->weights.layers[static_cast<std::size_t>(layer)];
    }
    const DeviceLayer& joined(int layer) const {
        return weights_->layers[static_cast<std::size_t>(layer)];
    }
    Tensor mlp_matrix(int layer) const {
        return layer_spec(layer).gated ? joined(layer).gate_up : weights_of(layer).up;
    }
    bool attention_fused(const Part& part, int layer) const;
    bool mlp_fused(const Part& part, int layer) const;
    bool norms_together(const Part& part, int layer) const;
    const LayerSpec& layer_spec(int layer) const {
        return layers_[static_cast<std::size_t>(layer)];
    }
    static cuda::NormPass norm_of(const LayerSpec& of, Tensor x, Tensor out, Tensor weight,
                                  Tensor bias);
    void check(int stage, Tensor x, std::int64_t first_row);
    void require_finite(const DeviceBuffers::Arrays& arrays, int behind);
    // Runs body() with stamps and keeps its stages.
    template <typename Body>
    void stamped(Body&& body) {
        if (!watched_) return body();
        watched_step_.reset();  // its stages are no longer in the timeline
        timeline_.clear_stages();
        const Meanwhile watching(ctx_.timeline, &timeline_);
        timeline_.reset(stream_);
        body();
        keep_stages(read_stamps());
    }
    void keep_stages(std::vector<Stage> stages);
    std::vector<Stage> read_stamps();

    // Fed rows.
    void prepare_rows();
    void prepare_programs();
    void capture_steps();
    template <typename Stays>
    void compact(Stays&& stays);
    void leave(int row);
    void join(Slot slot, std::int64_t position);
    void join_and_draw(Tensor logits, std::span<const std::pair<Slot, std::int64_t>> draws);
    void run_fed(const Pass& pass);
    void watched_step(StepKey key);
    const cuda::StepProgram* program(int rows) const;
    StepKey key_for(int rows, std::int64_t keys, cuda::SampleKind kind) const;
    bool samples_inside(int rows) const { return rows <= kSampledInside; }
    bool captures(int rows) const;
    const Captured& captured(const StepKey& key);
    ops::DeviceBatch decode_batch(const StepKey& key) const;
    void launch_forward(const StepKey& key);
    void launch_sample(int rows, cuda::SampleKind kind, bool adjusted);
    // Whether a row from `first` on is adjusted or keeps log-probabilities; and sends what their
    // draws need.
    bool adjusts_rows(std::size_t first) const;
    void send_adjustments(std::size_t first, int rows);
    // Keys that the current step reads in a layer, over all rows.
    std::int64_t keys_read(int layer) const {
        return masks_[mask_of_[static_cast<std::size_t>(layer)]].keys;
    }
    void add_keys_work(Ledger& ledger, std::vector<Stage>* stages) const;

    // Larger steps take milliseconds: two more launches do not matter, and their graphs need not be
    // captured for every kind of sampling.
    static constexpr int kSampledInside = 8;
    static constexpr int kAdjustedKind = 2;  // added to a cuda::SampleKind in a StepKey

    std::shared_ptr<const DeviceWeights> weights_;
    const ModelSpec& spec_;
    const std::vector<LayerSpec> layers_;
    cuda::Stream stream_;
    cuda::DeviceArena kv_memory_;
    DeviceBuffers buffers_;
    DeviceProducts products_;
    Staging staging_;
    cuda::Sampler sampler_;
    std::optional<cuda::Adjuster> adjuster_;     // none for a diffusion model
    std::vector<cuda::Adjuster::Row> adjusted_;  // for send_adjustments()
    cuda::Timeline timeline_;                    // of the watched pass or step, one at a time
    cuda::PinnedBuffer host_logits_;
    std::vector<cuda::DeviceGuess> host_guesses_;

    std::vector<DeviceSlot> slots_;
    std::vector<Slot> rows_;  // the slot in each row of the step
    std::int32_t spare_ = 0;  // the page that idle rows write to
    double rope_magnitude_ = 1;
    Tensor apart_;  // still to be added to x, where the GEMM did not
    std::map<StepKey, Captured> graphs_;
    Fill fill_;
    cuda::PinnedBuffer fill_report_;  // cuda::BlockReport
    RecentMap<FillKey, CapturedFill> fills_{kMostFills};
    std::map<FillKey, ForwardTimes> forward_times_;
    // Passes of several texts. A shape is captured when it comes a second time.
    RecentMap<GuessKey, Captured> guess_passes_{kMostFills};
    std::uint64_t captured_passes_ = 0;
    std::set<std::uint64_t> warm_rows_;  // row counts whose GEMMs have run once: warm_up()
    // The same with stamps: only the last one, since all share the timeline.
    std::optional<std::pair<StepKey, Captured>> watched_step_;
    // The layers of a step as one kernel, by rows; none if there is no such kernel.
    std::array<std::optional<cuda::StepProgram>, cuda::kStepRows + 1> programs_;
    cuda::DeviceTurn turn_;
    // The distinct masks of the layers, and the keys that the rows of the current step see through
    // each.
    struct MaskKeys {
        ops::AttentionMask mask;
        std::int64_t keys = 0;
    };
    std::vector<MaskKeys> masks_;
    std::vector<std::size_t> mask_of_;  // [layers]
    bool watched_ = false;
    std::vector<Stage> stages_;
};

}  // namespace mr::model
