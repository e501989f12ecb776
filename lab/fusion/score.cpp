#include "lab/fusion/score.h"

#include <vector>

#include "core/cuda/device.h"
#include "core/error.h"
#include "decode/open_sequence.h"

namespace mr::fusion {
namespace {

// Logits [1, vocab] with one high value: a greedy draw gives that token. They lie in the memory of
// the engine's logits.
class Pointer {
  public:
    Pointer(bool cuda, std::int64_t vocab) : host_(static_cast<std::size_t>(vocab)) {
        row_ = {host_.data(), DType::f32, {1, vocab}};
#ifdef MR_CUDA
        if (!cuda) return;
        stream_.emplace();
        memory_ = cuda::DeviceArena("logits that point", host_.size() * sizeof(float));
        row_.data = memory_.data();
        send(0, host_.size());
#else
        MR_CHECK(!cuda, "a build without CUDA has no engine there");
#endif
    }
    // The engine must have made its draw from the previous ones.
    Tensor to(std::int32_t id) {
        set(last_, 0.0f);
        set(static_cast<std::size_t>(id), kHigh);
        last_ = static_cast<std::size_t>(id);
        return row_;
    }

  private:
    static constexpr float kHigh = 32.0f;
    void set(std::size_t at, float value) {
        host_[at] = value;
        send(at, 1);
    }
    void send([[maybe_unused]] std::size_t first, [[maybe_unused]] std::size_t count) {
#ifdef MR_CUDA
        if (!stream_) return;
        stream_->to_device(memory_.data() + first * sizeof(float), host_.data() + first,
                           count * sizeof(float), nullptr);
        stream_->synchronize();
#endif
    }

    std::vector<float> host_;
    std::size_t last_ = 0;
    Tensor row_;
#ifdef MR_CUDA
    std::optional<cuda::Stream> stream_;
    cuda::DeviceArena memory_;
#endif
};

}  // namespace

double score_fed(model::Engine& engine, std::span<const std::int32_t> ids,
                 const Progress& progress) {
    MR_CHECK(ids.size() >= 3, "there is a token to predict behind one that is fed");
    engine.require_tokens(ids);
    model::KvCache& cache = engine.cache();
    const decode::OpenSequence open(cache);
    const model::SeqId seq = open.id();
    cache.reserve(seq, static_cast<std::int64_t>(ids.size()));
    Pointer pointer(engine.options().cuda, engine.model().spec.vocab);
    model::DrawParams greedy;
    greedy.sampling.temperature = 0;
    const model::BatchItem first{
        .seq = seq, .tokens = ids.first(1), .logits = model::BatchItem::Logits::none};
    engine.submit({&first, 1});
    double nats = 0;
    for (std::size_t i = 1; i + 1 < ids.size(); ++i) {
        if (progress) progress("scoring", i, ids.size());
        const model::Slot slot = engine.open_slot(seq, greedy);
        engine.draw(pointer.to(ids[i]), {&slot, 1});
        const model::BatchItem step{.seq = seq, .feed = slot, .draw = {&slot, 1}};
        const Tensor logits = engine.submit({&step, 1});
        double nll = 0;
        engine.cross_entropy({&nll, 1}, logits.slice_rows(0, 1), ids.subspan(i + 1, 1));  // waits
        nats += nll;
        engine.close_slot(slot);
    }
    return nats / static_cast<double>(ids.size() - 2);
}

}  // namespace mr::fusion
