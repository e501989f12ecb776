// The engine: a model that answers batches (batch.h), on the CPU or on a GPU. Code that fills
// batches does not know which.
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
    // sequences may stream no more than one of those needs (least_positions()): its text may be
    // longer, and the plan follows the window.
    std::int64_t context = 0;
    // Positions in the cache; 0: what fits, at most sequences x what one of them may need, and what
    // they share.
    std::int64_t pool = 0;
    // Where sequences may stream: positions of a beginning that they have in common. A pool of 0
    // has room to keep it once, beside the windows.
    std::int64_t shared = 0;
    int max_sequences = 1;
    int max_batch = 256;  // given tokens in one pass; longer prompts are cut
    int max_logits = 0;   // rows of logits in one pass; 0: max_sequences, or their blocks
    // Of a model that fills in tokens: places of a block; 0: the model's, or kUsualBlock.
    int block = 0;
    // Set by the engine. Rows of blocks that a GPU computes together, at most; 0: as many as of
    // other rows.
    int block_rows = 0;
    std::optional<DType>
        kv_type{};  // of the cache; none: f32 on the CPU, the compute type on the GPU

    // Sequences may stream (KvCache::set_stream) with at most these sinks and this window: the pool
    // has room for them. None: no sequence does.
    Stream stream{};

    bool check_nan = false;  // look for NaN and infinities at every stage; the first is an Error

    // On the GPU; each can be switched off, to see what it is worth.
    bool fuse = true;              // norms, rotation, activation inside of the products
    bool add_in_product = true;    // products of a decode step add to the residual stream
    bool add_in_norm = true;       // where they do not, the norm that follows adds
    bool norms_together = true;    // both norms of a parallel residual are one pass
    bool graph = true;             // a decode step is one launch
    bool dependent_launch = true;  // kernels start while their predecessors end
    bool batch_products = true;    // products of many decode rows read the weights once
    // Attention of many sequences or long keys has blocks that stay on their multiprocessor.
    bool resident_attention = true;
    // The layers of a decode step are one kernel, where there is one (docs/cuda-engine.md). One
    // engine of a process at a time has it.
    bool persistent = true;
    // A block of a model that fills in tokens is one launch; otherwise a pass of it is.
    bool loop = true;
    // Where no draw is filtered, the head of such a model gives records of 16 tokens each instead
    // of logits (ops/denoise/tile_draw.h).
    bool head_records = true;
};

// A block of a model whose attention is full, where nothing else is asked for.
inline constexpr int kUsualBlock = 32;

// Given tokens of a pass on a GPU where nothing else is asked for: products of many rows are at
// their best, and a pass of a large model is still over before a person notices.
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
    // Ops on the host that belong to this engine's work.
    const Context& context() const { return ctx_; }
    // Throws Error (input) where one of them is no token of the model.
    void require_tokens(std::span<const std::int32_t> ids) const;
    // Positions that one sequence can have that does not stream: the context, or less where
    // positions are learned.
    std::int64_t most_positions() const;
    // ... of one that streams: as many as are counted.
    static constexpr std::int64_t kMostPositions = (std::int64_t{1} << 30) - 1;
    // Positions up to its own that a token sees in any layer, beside sinks; 0: all before it.
    std::int64_t window() const { return window_; }
    std::int64_t window(const Stream& stream) const;
    // The first positions of a sequence that streams hold what those of any other would, in tokens
    // of this form.
    std::int64_t plain_positions(const Stream& stream, Form form) const;

    // Makes room in the cache for positions [0, length) of a sequence that has committed nothing,
    // or the beginning of what it keeps; false, and nothing taken, where there is none. Where every
    // layer has a window, what follows the first `kept` positions may go round in as many pages as
    // the window and the rows of a pass need (KvCache::try_reserve_circle): behind those that are
    // kept a pass has one token of the sequence, or a piece of a prompt where none is.
    bool try_reserve(SeqId seq, std::int64_t kept, std::int64_t length);
    // Gives back the pages that no query to come sees; none where a layer sees everything.
    void release(SeqId seq);

    // Runs one pass. On a GPU it returns once the pass is launched. The sequences' pages must be
    // reserved or free; Error (device) where no page is left. Returns logits f32 [rows, vocab] of
    // the items with given tokens whose logits are read, in their order; of a batch of fed items
    // alone, a row each, in the items' order until one has left. They are valid until the next
    // pass, and on a GPU they lie there: to_host() and cross_entropy() know what to do with them.
    // The bits of a row depend on its sequence and its items' forms alone. Fed items are those that
    // draw again, and once a pass with fed items has left a slot out, that slot is fed no more.
    Tensor submit(std::span<const BatchItem> items);
    // The same, and what the rows whose logits the items ask for (Logits::some) say of unknown
    // tokens: row i, in the items' order, of places[i]. The model's mask token has no probability.
    // No logits are left for the caller; where no draw is filtered, a GPU makes none. A row without
    // a token is no error: its guess has the id of an ops::GuessFault.
    void submit(std::span<const BatchItem> items, std::span<const Place> places,
                std::span<ops::Guess> out);

    // A slot for a sequence. Its draws are numbered from 0.
    virtual Slot open_slot(SeqId seq, const DrawParams& params) = 0;
    // The slot is free again; what it was to draw is not read any more.
    virtual void close_slot(Slot slot) = 0;
    // slots[i] draws from row i of the logits of the last pass.
    virtual void draw(Tensor logits, std::span<const Slot> slots) = 0;
    // Draw number `number` of the slot, when it is there. Throws what ops::sample() throws. Draws
    // that are more than 16 behind the newest one are forgotten.
    virtual ops::Sampled wait(Slot slot, std::uint64_t number) = 0;
    virtual bool ready(Slot slot, std::uint64_t number) = 0;  // whether wait() would not wait
    // Of a draw that was waited for, where the slot keeps them (DrawParams::logprobs): by the
    // logits as the model gave them.
    virtual ops::DrawnLogprobs logprobs(Slot slot, std::uint64_t number) = 0;

    // Engines that fill in a text by themselves: fill_block() runs passes until all places of the
    // open block are settled, as ops::guess() and ops::choose() settle them, and opens the next
    // block. What was before it is then in the cache, where attention is full what the text keeps
    // of it. A text is open until another pass runs.
    virtual bool takes_block(const OpenBlock&) const { return false; }
    virtual void open_block(const OpenBlock&) {}
    virtual bool block_is_open(SeqId) const { return false; }
    virtual FilledBlock fill_block() { return {}; }
    // What the passes over the open block would take without guesses: seconds of the layers and a
    // head that stores logits, back to back. The first passes are those that commit what lies
    // before the block.
    struct ForwardTimes {
        double first = 0;      // of all first passes
        int first_passes = 0;  // 0: not measured
        double again = 0;      // of each that follows
    };
    virtual ForwardTimes time_forward() { return {}; }
    // nll[t] of targets[t] by row t of such logits.
    virtual void cross_entropy(std::span<double> nll, Tensor logits,
                               std::span<const std::int32_t> targets) = 0;
    // Such logits in host memory, valid until the next call.
    virtual Tensor to_host(Tensor logits) = 0;
    // The keys and values of a page, all layers.
    virtual void copy_page(std::int32_t to, std::int32_t from) = 0;
    // Until everything that was launched is done.
    virtual void synchronize() = 0;

    // Passes that are worth launching before the draws of the first of them are read.
    virtual int ahead() const = 0;
    // A prompt may be cut, and a known prefix of it be reused, at multiples of this.
    virtual std::int64_t cut() const = 0;
    // Whether passes are timed one by one by the device's own clock. While watched, submit() waits
    // until the pass is done and keeps its stages for take_stages(). Nothing on the CPU, whose ops
    // enter their times into the ledger.
    virtual void watch(bool on) = 0;
    virtual std::vector<Stage> take_stages() = 0;
    virtual std::uint64_t stage_bytes() const = 0;  // copied to the host for each of them
    // Whether the layers of the last step of fed rows were one kernel.
    virtual bool one_kernel() const = 0;
    // What a greedy step of so many rows and keys is made of: kernels (and the like), and how many
    // times the host launches something for it. None on the CPU.
    struct StepLaunches {
        int kernels = 0, launches = 0;
    };
    virtual StepLaunches step_launches(int /*rows*/, std::int64_t /*keys*/) { return {}; }

  protected:
    Engine(std::shared_ptr<const Model> model, const EngineOptions& options);

    // A batch as it is laid out: given items first, then the fed ones, each in their order.
    struct Pass {
        std::vector<const BatchItem*> items;
        std::vector<ops::BatchSeq> seqs;  // of each item
        std::size_t given = 0;            // items with given tokens
        std::int64_t tokens = 0;          // rows of all items
    };
    virtual Tensor run(const Pass& pass) = 0;
    virtual void run(const Pass& pass, std::span<const Place> places,
                     std::span<ops::Guess> out) = 0;
    void make_room(const BatchItem& item, ops::BatchSeq& seq);
    static std::int64_t logit_rows(const BatchItem& item);
    // Row r of the logits of an item: which of its `count` tokens it is of.
    static std::int64_t logit_token(const BatchItem& item, std::int64_t count, std::int64_t r);
    // The guesses of submit() by logits that lie in host memory, with scratch there for every
    // thread (ops::sample_scratch_bytes()).
    void guess_here(Tensor logits, std::span<const Place> places, std::span<ops::Guess> out,
                    std::span<std::byte> scratch);
    // Where the draws of item i of the pass stand in their sequence: Philox's index.
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

// Positions that a sequence of `context` needs in the cache at least: all, or where every layer has
// a window those of a circle for the largest pass (options.max_batch).
std::int64_t least_positions(const ModelSpec& spec, const EngineOptions& options);
// Positions whose pages a sequence may hold at once.
std::int64_t most_held(const ModelSpec& spec, const EngineOptions& options);
// Tokens of a stream that a repetition penalty looks at, at most: as many as are seen, and the
// usual number where those are fewer.
inline int most_recent(const Stream& stream) {
    return std::max(DrawParams{}.window, stream.sinks + stream.window);
}
// Throws Error where no sequence of the model can stream as the options say.
void require_stream(const ModelSpec& spec, const EngineOptions& options);

// What such an engine will hold.
MemoryPlan plan_engine(const Model& model, const EngineOptions& options);
// Throws Error where there can be none: not enough memory, or positions that the model lacks.
// Spec and bytes of the weights are all that either looks at (LoadOptions::planned).
void require_engine(const Model& model, const EngineOptions& options);
// options.cuda: `weights` are the model's on the device (load_to_device()).
std::unique_ptr<Engine> make_engine(std::shared_ptr<const Model> model,
                                    const EngineOptions& options,
                                    std::shared_ptr<const DeviceWeights> weights = nullptr);
// The options with every default filled in; `available` bytes (0: unknown) bound a pool of 0.
EngineOptions with_defaults(const Model& model, const EngineOptions& options,
                            std::uint64_t available);

}  // namespace mr::model
