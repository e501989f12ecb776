// The forward pass, written once for every family, over a ragged batch and the paged KV cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/context.h"
#include "core/ledger.h"
#include "core/thread_pool.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "ops/sample/sample.h"

namespace mr::model {

class DeviceEngine;
struct DeviceWeights;

struct EngineOptions {
    bool cuda = false;         // compute on the GPU
    int threads = 0;           // 0: all cores
    std::int64_t context = 0;  // positions in the cache, over all sequences; 0: the model's own
    int max_sequences = 1;
    int max_batch = 256;  // tokens in one forward pass; longer prompts are cut into chunks
    int max_logits = 0;   // rows of logits in one pass; 0: max_sequences
    std::optional<DType>
        kv_type{};  // of the cache; none: f32 on the CPU, the compute type on the GPU

    bool check_nan = false;  // look for NaN and infinities at every stage; the first is an Error

    // On the GPU; each can be switched off, to see what it is worth.
    bool fuse = true;              // norms, rotation, activation inside of the products
    bool graph = true;             // a decode step is one launch
    bool dependent_launch = true;  // kernels start while their predecessors end
    bool batch_products = true;    // products of 5 tokens and more read the weights once
    // Attention of many sequences or long keys has blocks that stay on their multiprocessor.
    bool resident_attention = true;
    // The layers of a decode step are one kernel, where there is one (docs/cuda-engine.md). One
    // engine of a process at a time has it.
    bool persistent = true;
};

// A sequence that is to be decoded: what it draws with.
struct DecodeRow {
    SeqId seq = 0;
    ops::SampleParams params;
    std::vector<std::int32_t> recent;  // the tokens before the first one drawn, for the penalty
    int window = 64;                   // of them and of what follows, how many count
    std::int64_t most = 1;             // tokens that will be drawn at most
};

// One sequence's part in a forward pass: its next tokens, at positions that follow what it has.
struct BatchItem {
    SeqId seq = 0;
    std::span<const std::int32_t> tokens;
    enum class Logits { none, last, all };
    Logits logits = Logits::last;  // of which of the tokens logits are wanted
};

class Engine {
  public:
    // options.cuda: `weights` are the model's on the device (load_to_device()).
    Engine(std::shared_ptr<const Model> model, const EngineOptions& options,
           std::shared_ptr<const DeviceWeights> weights = nullptr);
    ~Engine();

    // What such an engine will hold.
    static MemoryPlan plan(const Model& model, const EngineOptions& options);
    // Throws Error where there can be none: not enough memory, or positions that the model lacks.
    // Spec and bytes of the weights are all that either looks at (LoadOptions::planned).
    static void require(const Model& model, const EngineOptions& options);

    // Runs one pass and returns logits f32 [rows, vocab], rows in the order of the items (and of
    // their tokens). Valid until the next call. The bits of a row depend on its sequence alone.
    // On the GPU they lie there: to_host(), cross_entropy() and device() know what to do with them.
    Tensor forward(std::span<const BatchItem> batch);
    // nll[t] of targets[t] by row t of such logits.
    void cross_entropy(std::span<double> nll, Tensor logits, std::span<const std::int32_t> targets);
    // A row of such logits in host memory, valid until the next call.
    Tensor to_host(Tensor logits);

    const Model& model() const { return *model_; }
    const EngineOptions& options() const { return options_; }
    KvCache& cache();
    DeviceEngine* device() { return device_.get(); }  // null on the CPU
    Ledger& ledger() { return ledger_; }
    const Context& context() const { return ctx_; }

  private:
    struct Activations {
        Tensor x;         // [tokens, dim]     the residual stream
        Tensor h;         // [tokens, dim]     normed input of attention
        Tensor h2;        // [tokens, dim]     normed input of the MLP, where parallel
        Tensor q, k, v;   // [tokens, q_dim], [tokens, kv_dim] twice
        Tensor attn;      // [tokens, q_dim]
        Tensor gate, up;  // [tokens, hidden]
        Tensor cos_sin;   // [tokens, rotary/2, 2]
        Tensor last;      // [rows, dim]       what the LM head reads
        Tensor logits;    // [rows, vocab]
    };
    template <typename Take>
    static void for_each_activation(const ModelSpec& spec, const EngineOptions& options,
                                    Activations& a, Take&& take);
    void attention_block(const LayerWeights& w, int layer, const Activations& a);
    void mlp_block(const LayerWeights& w, int layer, const Activations& a, Tensor input);
    void norm(Tensor out, Tensor x, Tensor weight, Tensor bias) const;
    Activations views(std::int64_t tokens, std::int64_t rows) const;
    // With check_nan: throws Error where `x`, what a stage of the pass over `batch` gave, has a
    // value that is not finite.
    void check(int stage, Tensor x, std::span<const BatchItem> batch) const;

    std::shared_ptr<const Model> model_;
    EngineOptions options_;
    RopeFrequencies rope_;
    ThreadPool pool_;
    Ledger ledger_;
    std::unique_ptr<KvCache> cache_;
    std::unique_ptr<DeviceEngine> device_;
    std::vector<float> host_logits_;
    Arena arena_;
    Activations full_;  // sized for max_batch tokens and max_logits rows
    Context ctx_;
    std::vector<ops::BatchSeq> seqs_;
    std::vector<std::int32_t> ids_, positions_;
};

}  // namespace mr::model
