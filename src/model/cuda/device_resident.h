// The engine on the device: weights, cache, activations and sampler stay there.
// device_engine_cuda.cpp runs passes, device_decode.cu the step that is replayed.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "core/cuda/timeline.h"
#include "model/cuda/device_buffers.h"
#include "model/cuda/device_engine.h"
#include "model/cuda/device_products.h"
#include "ops/linear/linear_cuda.h"
#include "ops/norm/norm_cuda.h"
#include "ops/sample/sample_cuda.h"
#include "ops/step/step_cuda.h"

namespace mr::model {

// Sets a variable for the length of a scope, however that ends.
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

class Resident final : public DeviceEngine {
  public:
    Resident(std::shared_ptr<const Model> model, std::shared_ptr<const DeviceWeights> weights,
             const EngineOptions& options, Ledger& ledger);
    ~Resident() override;

    KvCache& cache() override { return *cache_; }
    Tensor forward(std::span<const BatchItem> batch, std::span<const ops::BatchSeq> seqs) override;
    void cross_entropy(std::span<double> nll, Tensor logits,
                       std::span<const std::int32_t> targets) override;
    void to_host(std::span<float> values, Tensor tensor) override;
    void begin(std::span<const DecodeRow> rows, Tensor logits) override;
    void step() override;
    ops::Sampled wait(int row, std::uint64_t draw) override {
        return sampler_.wait(row, first_draw_[static_cast<std::size_t>(row)] + draw);
    }
    bool persistent() const override { return program() != nullptr; }
    void synchronize() override { stream_.synchronize(); }
    std::vector<cuda::Stage> measured_step() override;
    void watch(bool on) override { watched_ = on; }
    bool watched() const override { return watched_; }
    std::vector<cuda::Stage> take_stages() override { return std::exchange(stages_, {}); }

  private:
    // Rows [first, first + batch.tokens) of the activations, all with few or all with many rows.
    struct Part {
        ops::DeviceBatch batch;
        std::int64_t first = 0;
        bool few = true;
    };
    ops::DeviceBatch upload(std::span<const BatchItem* const> items,
                            std::span<const ops::BatchSeq* const> seqs, std::int64_t first_row,
                            int first_seq, std::int32_t* first);
    Tensor pass(std::span<const BatchItem> batch, std::span<const ops::BatchSeq> seqs);
    void run(const Part& part);
    void attention_in(const Part& part, int layer);
    void mlp_in(const Part& part, int layer);
    void heads(Tensor logits, Tensor x, bool few);
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
        return spec_.gated ? joined(layer).gate_up : weights_of(layer).up;
    }
    bool attention_fused(const Part& part, int layer) const;
    bool mlp_fused(const Part& part, int layer) const;
    bool norms_together(const Part& part, int layer) const;
    cuda::NormPass norm_of(Tensor x, Tensor out, Tensor weight, Tensor bias) const;
    void check(int stage, Tensor x, std::int64_t first_row);
    void require_finite(const DeviceBuffers::Arrays& arrays, int behind);
    void prepare_steps();
    const cuda::StepProgram* program() const;
    void launch_step();
    ops::DeviceBatch decode_batch(int rows) const;
    std::int64_t decode_keys_read() const;
    OpRecord keys_work() const;
    void stepped();
    std::vector<cuda::Stage> read_stamps();

    std::shared_ptr<const Model> model_;
    std::shared_ptr<const DeviceWeights> weights_;
    const ModelSpec& spec_;
    EngineOptions options_;
    Ledger& ledger_;
    cuda::Stream stream_;
    cuda::DeviceArena kv_memory_;
    std::unique_ptr<KvCache> cache_;
    DeviceBuffers buffers_;
    DeviceProducts products_;
    cuda::PinnedBuffer staging_;
    cuda::Event staged_;  // the last upload has left the staging memory
    std::size_t staging_used_ = 0;
    cuda::Sampler sampler_;
    cuda::Timeline timeline_;  // of whatever is watched: one pass or step at a time
    Context ctx_;

    // The step that is replayed: one graph for each shape of it.
    struct Captured {
        cuda::Graph graph;
        Ledger ledger;
    };
    using GraphKey = std::tuple<int, int, int>;  // rows, keys (a power of two), kind of sampling
    std::map<GraphKey, Captured> graphs_;
    // The same with stamps: the last one alone, since all share the timeline.
    std::optional<std::pair<GraphKey, Captured>> watched_step_;
    // The layers of a step as one kernel, by rows; none where there is no such kernel.
    std::array<std::optional<cuda::StepProgram>, cuda::kStepRows + 1> programs_;
    cuda::StepTurn step_turn_;
    int decode_rows_ = 0;
    std::int64_t decode_keys_ = 0;              // keys of the longest row after the next step
    std::vector<std::int64_t> decode_lengths_;  // ... of every row
    std::vector<std::uint64_t> first_draw_;
    bool watched_ = false;
    std::vector<cuda::Stage> stages_;
};

}  // namespace mr::model
