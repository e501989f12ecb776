// Greedy decoding after a fixed prompt, with one interface for the plain forward and the engine:
// tokens, logits and speed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "decode/loop.h"
#include "lab/ladder/llama.h"
#include "lab/ladder/weights.h"
#include "model/engine.h"

namespace mr::ladder {

using Logits = std::vector<std::vector<float>>;  // [tokens][vocab]

struct Drawn {
    std::vector<std::int32_t> tokens;
    Logits logits;           // the row each token was drawn from
    bool repeatable = true;  // every repetition drew the same tokens
};

struct Timing {
    int tokens = 0;
    double seconds = 0;
    Ledger ledger;               // of these tokens
    std::optional<Split> split;  // shares of the time, 0 to 1, if products are on the device
};

class Decoder {
  public:
    virtual ~Decoder() = default;
    // The first tokens after the prompt.
    virtual Drawn draw(int tokens) = 0;
    // Times this many more tokens after the first; fewer (at least 2) if they are slow.
    virtual Timing time(int tokens) = 0;
};

class PlainDecoder final : public Decoder {
  public:
    PlainDecoder(ModelPtr model, std::unique_ptr<Matmul> matmul,
                 std::span<const std::int32_t> prompt, int positions, bool on_device);
    Drawn draw(int tokens) override;
    Timing time(int tokens) override;

  private:
    // Goes back to the end of the prompt: returns its logits.
    const std::vector<float>& restart();

    std::unique_ptr<Matmul> matmul_;
    PlainLlama llama_;
    std::vector<std::int32_t> prompt_;
    bool on_device_;
};

class EngineDecoder final : public Decoder {
  public:
    // options.cuda: `weights` are the model's weights on the device.
    EngineDecoder(ModelPtr model, model::EngineOptions options,
                  std::shared_ptr<const model::DeviceWeights> weights,
                  std::span<const std::int32_t> prompt);
    Drawn draw(int tokens) override;
    Timing time(int tokens) override;
    // The logits before each of these tokens, drawn or given.
    Logits follow(std::span<const std::int32_t> tokens);

  private:
    Tensor restart();
    Tensor feed(std::int32_t token);
    std::vector<float> row_of(Tensor logits);
    decode::DecodeRow greedy(int most) const;

    std::unique_ptr<model::Engine> engine_;
    std::vector<std::int32_t> prompt_;
    model::SeqId seq_;
};

// The most probable token; the lowest id among equals.
std::int32_t best_of(std::span<const float> logits);

}  // namespace mr::ladder
