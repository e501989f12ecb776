// The sequences that the ways are measured on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bench/context/upkeep.h"
#include "decode/measure.h"
#include "decode/open_sequence.h"
#include "model/engine.h"

namespace mr::context {

// A sequence that is closed however the measurement ends. It knows what is to be done after a step.
class Sequence {
  public:
    explicit Sequence(model::Engine& engine)
        : engine_(engine), open_(engine.cache()), id_(open_.id()) {}
    virtual ~Sequence() = default;
    Sequence(const Sequence&) = delete;
    Sequence& operator=(const Sequence&) = delete;

    model::SeqId id() const { return id_; }
    // Behind given tokens, and behind every step: the work on the cache. Gives its bytes.
    virtual std::uint64_t keep() { return 0; }
    // Behind keep(), not a part of the work: the books follow. Gives whether positions have
    // changed, so that a row of the sequence has to join anew.
    virtual bool settle() { return false; }

    Tensor prompt(std::span<const std::int32_t> tokens) {
        return decode::run_prompt(engine_, id_, tokens);
    }

  protected:
    model::Engine& engine_;
    const decode::OpenSequence open_;
    const model::SeqId id_;
};

// The engine's own streaming.
class RingSequence final : public Sequence {
  public:
    RingSequence(model::Engine& engine, const model::Stream& stream);
};

// StreamingLLM as published, pruned after every `prune` tokens.
class PublishedSequence final : public Sequence {
  public:
    PublishedSequence(model::Engine& engine, const model::Stream& stream, int prune);
    std::uint64_t keep() override;
    bool settle() override;

  private:
    // Room for all places, in the same pages as ever: the upkeep has their numbers.
    void reserve();

    const std::int64_t sinks_, prune_, capacity_;
    std::vector<std::int32_t> pages_;
    std::unique_ptr<Upkeep> upkeep_;
    std::int64_t taken_ = 0;   // places whose masters are there
    std::int64_t length_ = 0;  // places that stay
};

}  // namespace mr::context
