// The engine: computes batches (batch.h) of a model on the CPU or on a GPU. Callers need not know
// which.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/context.h"
#include "core/ledger.h"
#include "core/thread_pool.h"
#include "model/batch.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "ops/sample/logprobs.h"

namespace mr::model {

struct DeviceWeights;

struct EngineOptions {
    bool cuda = false;  // compute on the GPU
    int threads = 0;    // 0: all cores
    // Positions of one sequence that does not stream, at most. 0: the model's own, or where
    // sequences may stream no more than a stream needs (least_positions()): a text may be longer,
    // and the plan depends on the window.
    std::int64_t context = 0;
    // Positions in the cache; 0: what fits, at most sequences x what one may need, plus what they
    // share.
    std::int64_t pool = 0;
    // Where sequences may stream: positions of a common prefix. A pool of 0 has room for it once,
    // beside the windows.
    std::int64_t shared = 0;
    int max_sequences = 1;
    int max_batch = 256;  // given tokens in one pass; longer prompts are cut
    int max_logits = 0;   // rows of logits in one pass; 0: max_sequences, or their blocks
    // Diffusion model: places of a block; 0: the model's, or kUsualBlock.
    int block = 0;
    // Set by the engine. Rows of diffusion blocks that a GPU computes together, at most; 0: as for
    // other rows.
    int block_rows = 0;
    std::optional<DType>
        kv_type{};  // of the cache; none: f32 on the CPU, the compute type on the GPU

    // Sequences may stream (KvCache::set_stream) with at most these sinks and this window: the pool
    // has room for them. None: no streams.
    Stream stream{};

    bool check_nan = false;  // look for NaN and infinities at every stage; the first is an Error

    // For the GPU; each can be switched off to measure its worth.
    bool fuse = true;              // norms, rotation, activation inside of the products
    bool add_in_product = true;    // GEMMs of a decode step add to the residual stream
    bool add_in_norm = true;       // otherwise the next norm adds
    bool norms_together = true;    // both norms of a parallel residual in one pass
    bool graph = true;             // a decode step is one launch
    bool dependent_launch = true;  // kernels start while their predecessors end
    bool batch_products = true;    // GEMMs of many decode rows read the weights once
    // Attention over many sequences or long keys uses persistent blocks, which stay on their
    // multiprocessor.
    bool resident_attention = true;
    // The layers of a decode step are one kernel, where there is one (docs/cuda-engine.md). Only
    // one engine of a process at a time has it.
    bool persistent = true;
    // A block of a diffusion model is one launch; if false, each of its passes is one.
    bool loop = true;
    // If no draw is filtered, the head of a diffusion model gives records of 16 tokens each instead
    // of logits (ops/denoise/tile_draw.h).
    bool head_records = true;
};

// Default block of a diffusion model with full attention.
inline constexpr int kUsualBlock = 32;

// Default number of given tokens in a pass on a GPU: GEMMs reach full speed, and a pass of a large
// model still ends before a person notices.
inline constexpr int kDeviceBatch = 2048;

class Engine {
  public:
    virtual ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    const Model& model() const { return *model_; }
    const EngineOptions& options() const { return options_; }
    KvCache& cache() { return *cache_; }
    Ledger& ledger() { return ledger_; }
    // The context for host ops that are part of this engine's work.
    const Context& context() const { return ctx_; }
    // Throws Error (input) if one of them is not a token of the model.
    void require_tokens(std::span<const std::int32_t> ids) const;
    // Positions of one sequence that does not stream, at most: the context, or less where positions
    // are learned.
    std::int64_t most_positions() const;
    // The same for a sequence that streams: the largest position that is counted.
    static constexpr std::int64_t kMostPositions = (std::int64_t{1} << 30) - 1;
    // Positions, its own included, that a token sees in any layer, besides sinks; 0: all before it.
    std::int64_t window() const { return window_; }
    std::int64_t window(const Stream& stream) const;
    // The number of first positions at which a streaming sequence has the same keys and values as
    // any other, for tokens of this form.
    std::int64_t plain_positions(const Stream& stream, Form form) const;

    // Reserves cache pages for positions [0, length) of a sequence that has committed nothing, or
    // only the beginning of `kept`; false, and nothing reserved, if there is no room. Where every
    // layer has a window, positions after the first `kept` may use a ring of as many pages as the
    // window and the rows of a pass need (KvCache::try_reserve_circle): a pass may then have one
    // token of the sequence after the kept ones, or a piece of a prompt if `kept` is 0.
    bool try_reserve(SeqId seq, std::int64_t kept, std::int64_t length);
    // Frees pages that no later query sees; none if a layer sees everything.
    void release(SeqId seq);

    // Runs one pass. On a GPU it returns once the pass is launched. The sequences' pages must be
    // reserved or free; Error (device) if no page is left. Returns logits f32 [rows, vocab] of the
    // given items whose logits are read, in order; for a batch of fed items only, one row each, in
    // the items' order until one has left. They are valid until the next pass and lie in the
    // engine's memory: to_host() and cross_entropy() handle both. The bits of a row depend only on
    // its sequence and its items' forms. Fed items draw again, and a slot that a pass with fed
    // items leaves out cannot be fed any more.
    Tensor submit(std::span<const BatchItem> items);
    // The same, and guesses of unknown tokens: guess i is for places[i], from row i of the logits
    // that the items ask for (Logits::some), in order. The model's mask token has no probability.
    // The caller gets no logits; a GPU makes none if no draw is filtered. A row without a valid
    // token is no error: its guess has the id of an ops::GuessFault.
    void submit(std::span<const BatchItem> items, std::span<const Place> places,
                std::span<ops::Guess> out);

    // Opens a slot for a sequence. Its draws are numbered from 0.
    virtual Slot open_slot(SeqId seq, const DrawParams& params) = 0;
    // Frees the slot; its pending draws are not read.
    virtual void close_slot(Slot slot) = 0;
    // slots[i] draws from row i of the logits of the last pass.
    virtual void draw(Tensor logits, std::span<const Slot> slots) = 0;
    // Waits for draw number `number` of the slot. Throws what ops::sample() throws. Draws more than
    // 16 behind the newest are dropped.
    virtual ops::Sampled wait(Slot slot, std::uint64_t number) = 0;
    virtual bool ready(Slot slot, std::uint64_t number) = 0;  // whether wait() would not wait
    // Log-probabilities of a draw that was waited for, if the slot keeps them
    // (DrawParams::logprobs): from the model's unadjusted logits.
    virtual ops::DrawnLogprobs logprobs(Slot slot, std::uint64_t number) = 0;

    // For engines that fill in a text by themselves: fill_block() runs passes until all places of
    // the open block are settled, as ops::guess() and ops::choose() settle them, and opens the next
    // block. The tokens before it are then in the cache; with full attention, those that the text
    // keeps. A text is open until another pass runs.
    virtual bool takes_block(const OpenBlock&) const { return false; }
    virtual void open_block(const OpenBlock&) {}
    virtual bool block_is_open(SeqId) const { return false; }
    virtual FilledBlock fill_block() { return {}; }
    // Time of the passes over the open block without guesses: seconds of the layers and a head that
    // stores logits, back to back. The first passes are those that commit the tokens before the
    // block.
    struct ForwardTimes {
        double first = 0;      // all first passes together
        int first_passes = 0;  // 0: not measured
        double again = 0;      // each following pass
    };
    virtual ForwardTimes time_forward() { return {}; }
    // nll[t] of targets[t], from row t of logits that submit() returned.
    virtual void cross_entropy(std::span<double> nll, Tensor logits,
                               std::span<const std::int32_t> targets) = 0;
    // Logits of submit() in host memory, valid until the next call.
    virtual Tensor to_host(Tensor logits) = 0;
    // Copies keys and values of a page in all layers.
    virtual void copy_page(std::int32_t to, std::int32_t from) = 0;
    // Waits until all launched work is done.
    virtual void synchronize() = 0;

    // How many passes to launch ahead before the draws of the first are read.
    virtual int ahead() const = 0;
    // A prompt may be cut, and a known prefix of it be reused, at multiples of this.
    virtual std::int64_t cut() const = 0;
    // Turns on timing of each pass by the device's own clock. While watched, submit() waits until
    // the pass is done and keeps its stages for take_stages(). No effect on the CPU, whose ops
    // enter their times into the ledger.
    virtual void watch(bool on) = 0;
    virtual std::vector<Stage> take_stages() = 0;
    virtual std::uint64_t stage_bytes() const = 0;  // copied to the host for each of them
    // Whether the layers of the last step of fed rows ran as one kernel.
    virtual bool one_kernel() const = 0;
    // Kernels (and other graph nodes) of a greedy step with this many rows and keys, and how many
    // launches the host makes for it. None on the CPU.
    struct StepLaunches {
        int kernels = 0, launches = 0;
    };
    virtual StepLaunches step_launches(int /*rows*/, std::int64_t /*keys*/) { return {}; }

  protected:
    Engine(std::shared_ptr<const Model> model, const EngineOptions& options);

    // A batch after layout: given items first, then fed ones, each in order.
    struct Pass {
        std::vector<const BatchItem*> items;
        std::vector<ops::BatchSeq> seqs;  // one for each item
        std::size_t given = 0;            // items with given tokens
        std::int64_t tokens = 0;          // rows of all items
    };
    virtual Tensor run(const Pass& pass) = 0;
    virtual void run(const Pass& pass, std::span<const Place> places,
                     std::span<ops::Guess> out) = 0;
    void make_room(const BatchItem& item, ops::BatchSeq& seq);
    static std::int64_t logit_rows(const BatchItem& item);
    // Row r of an item's logits belongs to this one of its `count` tokens.
    static std::int64_t logit_token(const BatchItem& item, std::int64_t count, std::int64_t r);
    // Guesses of submit() from logits in host memory, with host scratch for every thread
    // (ops::sample_scratch_bytes()).
    void guess_here(Tensor logits, std::span<const Place> places, std::span<ops::Guess> out,
                    std::span<std::byte> scratch);
    // Position of item i's draws in their sequence: the index for Philox.
    static std::int64_t draw_position(const Pass& pass, std::size_t i) {
        return pass.seqs[i].position + pass.seqs[i].count;
    }

    std::shared_ptr<const Model> model_;
    EngineOptions options_;
    ThreadPool pool_;
    Ledger ledger_;
    std::unique_ptr<KvCache> cache_;
    Context ctx_;
    const std::int64_t window_;  // ModelSpec::widest_window()

  private:
    void lay_out(std::span<const BatchItem> items);
    void advance();  // by what the pass has committed

    Pass pass_;
};

// Positions that a sequence of `context` needs in the cache at least: all, or, where every layer
// has a window, those of a ring for the largest pass (options.max_batch).
std::int64_t least_positions(const ModelSpec& spec, const EngineOptions& options);
// Positions whose pages one sequence may hold at once.
std::int64_t most_held(const ModelSpec& spec, const EngineOptions& options);
// Tokens of a stream that a repetition penalty looks at, at most: all visible ones, or the default
// number if that is larger.
inline int most_recent(const Stream& stream) {
    return std::max(DrawParams{}.window, stream.sinks + stream.window);
}
// Throws Error if no sequence of the model can stream as the options ask.
void require_stream(const ModelSpec& spec, const EngineOptions& options);

// The memory of such an engine.
MemoryPlan plan_engine(const Model& model, const EngineOptions& options);
// Throws Error if such an engine is impossible: not enough memory, or positions that the model
// lacks. Both functions use only the spec and the bytes of the weights (LoadOptions::planned).
void require_engine(const Model& model, const EngineOptions& options);
// options.cuda: `weights` are the model's weights on the device (load_to_device()).
std::unique_ptr<Engine> make_engine(std::shared_ptr<const Model> model,
                                    const EngineOptions& options,
                                    std::shared_ptr<const DeviceWeights> weights = nullptr);
// The bytes that a plan with a pool of 0 may take of what is free now.
std::uint64_t room_for_engine(const Model& model, const EngineOptions& options);
// On a CPU with `all` bytes, `free` of them free (0: unknown). A quarter of what is free stays
// free: for other programs, and for what a server holds beside its plan. The plan counts `weights`
// that are in memory already, and not free any more.
std::uint64_t room_beside_others(std::uint64_t all, std::uint64_t free, std::uint64_t weights);
// Fills in all defaults; `available` bytes (0: unknown) bound a pool of 0.
EngineOptions with_defaults(const Model& model, const EngineOptions& options,
                            std::uint64_t available);

}  // namespace mr::model
