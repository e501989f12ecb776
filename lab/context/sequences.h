// The sequences on which the ways are measured.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "decode/measure.h"
#include "decode/open_sequence.h"
#include "lab/context/upkeep.h"
#include "model/engine.h"

namespace mr::context {

// A sequence that is closed when the measurement ends, also by an exception. It does its upkeep
// after each step.
class Sequence {
  public:
    explicit Sequence(model::Engine& engine)
        : engine_(engine), open_(engine.cache()), id_(open_.id()) {}
    virtual ~Sequence() = default;
    Sequence(const Sequence&) = delete;
    Sequence& operator=(const Sequence&) = delete;

    model::SeqId id() const { return id_; }
    // Called after given tokens and after every step: the work on the cache. Returns its bytes.
    virtual std::uint64_t keep() { return 0; }
    // Called after keep(), not part of the measured work: updates the bookkeeping. Returns whether
    // positions have changed, so that the sequence's row must join again.
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
    // Reserves all places in the same pages as before: the upkeep holds their numbers.
    void reserve();

    const std::int64_t sinks_, prune_, capacity_;
    std::vector<std::int32_t> pages_;
    std::unique_ptr<Upkeep> upkeep_;
    std::int64_t taken_ = 0;   // places that have masters
    std::int64_t length_ = 0;  // places that are kept
};

}  // namespace mr::context
