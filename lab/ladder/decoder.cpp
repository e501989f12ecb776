#include "lab/ladder/decoder.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "decode/loop.h"

namespace mr::ladder {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kEnough = 1.0;  // seconds, enough to time slow rungs
constexpr int kWatched = 8;      // tokens with events around every copy

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

bool enough(int tokens, Clock::time_point start) {
    return tokens >= 2 && seconds_since(start) > kEnough;
}

}  // namespace

std::int32_t best_of(std::span<const float> logits) {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                     logits.begin());
}

PlainDecoder::PlainDecoder(ModelPtr model, std::unique_ptr<Matmul> matmul,
                           std::span<const std::int32_t> prompt, int positions, bool on_device)
    : matmul_(std::move(matmul)),
      llama_(std::move(model), *matmul_, positions),
      prompt_(prompt.begin(), prompt.end()),
      on_device_(on_device) {
    for (std::size_t i = 0; i + 1 < prompt_.size(); ++i) llama_.forward(prompt_[i]);
}

const std::vector<float>& PlainDecoder::restart() {
    llama_.truncate(static_cast<int>(prompt_.size()) - 1);
    return llama_.forward(prompt_.back());
}

Drawn PlainDecoder::draw(int tokens) {
    Drawn out;
    const std::vector<float>* logits = &restart();
    for (int i = 0; i < tokens; ++i) {
        if (i > 0) logits = &llama_.forward(out.tokens.back());
        out.logits.push_back(*logits);
        out.tokens.push_back(best_of(*logits));
    }
    return out;
}

Timing PlainDecoder::time(int tokens) {
    Timing out;
    std::int32_t token = best_of(restart());
    const Ledger before = matmul_->ledger;
    const auto start = Clock::now();
    for (; out.tokens < tokens && !enough(out.tokens, start); ++out.tokens) {
        token = best_of(llama_.forward(token));
    }
    out.seconds = seconds_since(start);
    out.ledger = matmul_->ledger.since(before);
    if (!on_device_) return out;

    // Separate from the timing above, because the events cost time.
    Split split;
    token = best_of(restart());
    matmul_->split = &split;
    const auto watched = Clock::now();
    for (int i = 0; i < std::min(tokens, kWatched); ++i) token = best_of(llama_.forward(token));
    const double seconds = seconds_since(watched);
    matmul_->split = nullptr;
    out.split = Split{split.copies / seconds, split.kernels / seconds, split.memory / seconds};
    return out;
}

EngineDecoder::EngineDecoder(ModelPtr model, model::EngineOptions options,
                             std::shared_ptr<const model::DeviceWeights> weights,
                             std::span<const std::int32_t> prompt)
    : engine_(model::make_engine(std::move(model), options, std::move(weights))),
      prompt_(prompt.begin(), prompt.end()),
      seq_(engine_->cache().open()) {
    for (std::size_t i = 0; i + 1 < prompt_.size(); ++i) feed(prompt_[i]);
}

// One token at a time, the prompt too: the same kernels as for decoding.
Tensor EngineDecoder::feed(std::int32_t token) {
    const model::BatchItem item{.seq = seq_, .tokens = {&token, 1}};
    return engine_->submit({&item, 1});
}

Tensor EngineDecoder::restart() {
    engine_->cache().truncate(seq_, static_cast<std::int64_t>(prompt_.size()) - 1);
    return feed(prompt_.back());
}

std::vector<float> EngineDecoder::row_of(Tensor logits) {
    const Tensor host = engine_->to_host(logits);
    return {host.f32(), host.f32() + host.shape.count()};
}

decode::DecodeRow EngineDecoder::greedy(int most) const {
    decode::DecodeRow row;
    row.seq = seq_;
    row.params.temperature = 0;
    row.most = most;
    return row;
}

// Through the loop that is timed, so that the graph is checked and not only its kernels. An engine
// has one buffer for the logits of a row, which every step overwrites, and on the GPU steps run
// ahead of the tokens that are read: only the logits of the last step are still there. So every
// length is run separately.
Drawn EngineDecoder::draw(int tokens) {
    Drawn out;
    for (int n = 1; n <= tokens; ++n) {
        decode::DecodeLoop loop(*engine_, restart(), {greedy(n)});
        for (int i = 0; i < n; ++i) {
            const std::int32_t id = loop.next().front().id;
            if (i == n - 1) {
                out.tokens.push_back(id);
            } else if (id != out.tokens[static_cast<std::size_t>(i)]) {
                out.repeatable = false;
            }
        }
        out.logits.push_back(row_of(loop.logits()));
    }
    return out;
}

Timing EngineDecoder::time(int tokens) {
    Timing out;
    decode::DecodeLoop loop(*engine_, restart(), {greedy(tokens + 1)});
    // The first draw is part of the loop's construction: from here on every step makes one token.
    const Ledger before = engine_->ledger();
    loop.next();
    const bool ahead = engine_->ahead() > 0;  // all steps are launched: read all of them
    const auto start = Clock::now();
    for (; out.tokens < tokens && (ahead || !enough(out.tokens, start)); ++out.tokens) loop.next();
    out.seconds = seconds_since(start);
    out.ledger = engine_->ledger().since(before);
    return out;
}

Logits EngineDecoder::follow(std::span<const std::int32_t> tokens) {
    Logits out;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        out.push_back(row_of(i == 0 ? restart() : feed(tokens[i - 1])));
    }
    return out;
}

}  // namespace mr::ladder
