// A plain Llama: one sequence, one token at a time, f32, on the host. The ladder's first rungs are
// this forward pass with another Matmul.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/ledger.h"
#include "core/thread_pool.h"
#include "model/model.h"

namespace mr::ladder {

// Where the time of products goes, in seconds.
struct Split {
    double copies = 0;
    double kernels = 0;
    double memory = 0;  // allocating and freeing device memory
};

// out[n] = w[n, k] · x[k]; the caller's arrays are f32 in host memory.
class Matmul {
  public:
    virtual ~Matmul() = default;
    virtual void multiply(float* out, const float* x, const float* w, int n, int k) = 0;

    Ledger ledger;           // every byte to and from the device
    Split* split = nullptr;  // set: filled, which costs time
};

// Rows [begin, end) of a product, as HostMatmul computes them.
void multiply_rows(float* out, const float* x, const float* w, std::int64_t begin, std::int64_t end,
                   int k);

// One thread, one multiplication and one addition at a time: what a compiler makes of the
// textbook's loop, which must not change the order of a sum.
class ScalarMatmul final : public Matmul {
  public:
    void multiply(float* out, const float* x, const float* w, int n, int k) override;
};

class HostMatmul final : public Matmul {
  public:
    explicit HostMatmul(int threads) : pool_(threads) {}
    void multiply(float* out, const float* x, const float* w, int n, int k) override;

  private:
    ThreadPool pool_;
};

// Throws Error (usage) naming what a plain Llama does not have. It has: RMSNorm, SiLU-gated MLP,
// rotary positions, no biases, causal attention over everything.
void require_plain(const model::Model& model);

class PlainLlama {
  public:
    // All weights are f32 in host memory. `positions`: capacity of the cache.
    PlainLlama(std::shared_ptr<const model::Model> model, Matmul& matmul, int positions);

    // The logits [vocab] after one more token. Valid until the next call.
    const std::vector<float>& forward(std::int32_t token);
    // Drops all but the first `length` tokens.
    void truncate(int length);

  private:
    void attention(int layer);
    void mlp(int layer);
    void rotate(float* head) const;
    void multiply(float* out, const float* x, const Tensor& w);

    std::shared_ptr<const model::Model> model_;
    const model::ModelSpec& spec_;
    Matmul& matmul_;
    model::RopeFrequencies rope_;
    float scale_;  // of the scores
    int positions_;
    int length_ = 0;
    std::vector<float> x_;              // [dim]     the residual stream
    std::vector<float> h_;              // [dim]     normed, or what a block adds to x
    std::vector<float> q_, attn_;       // [heads, head_dim]
    std::vector<float> scores_;         // [positions]
    std::vector<float> gate_, up_;      // [hidden]
    std::vector<float> cos_, sin_;      // [rotary / 2], of this position
    std::vector<float> keys_, values_;  // [layers, positions, kv_heads, head_dim]
    std::vector<float> logits_;         // [vocab]
};

}  // namespace mr::ladder
