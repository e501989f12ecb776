#include "decode/session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/error.h"
#include "decode/loop.h"
#include "model/cuda/device_engine.h"
#include "text/tokenizer.h"

namespace mr::decode {
namespace {

using Clock = std::chrono::steady_clock;

// On the CPU a prompt is fed in parts, so that whoever may cancel does not wait long: the first of
// so many tokens, larger ones as far as they are quick. The clock decides, which it may: on the CPU
// the bits of a row do not depend on how its prompt was cut.
constexpr std::size_t kFirstPart = 32;  // tokens
constexpr double kQuickPart = 0.5;      // seconds

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Holds back the end of the text as long as a stop string may be beginning there.
class StopFilter {
  public:
    explicit StopFilter(const std::vector<std::string>& stops) : stops_(stops) {}

    // Returns what can be shown; sets `stopped` where a stop string is complete.
    std::string push(std::string_view text, bool& stopped) {
        held_ += text;
        stopped = false;
        std::size_t found = std::string::npos;
        for (const std::string& stop : stops_) {
            if (!stop.empty()) found = std::min(found, held_.find(stop));
        }
        if (found != std::string::npos) {
            stopped = true;
            std::string out = held_.substr(0, found);
            held_.clear();
            return out;
        }
        std::size_t keep = 0;
        for (const std::string& stop : stops_) {
            const std::size_t most = std::min(held_.size(), stop.empty() ? 0 : stop.size() - 1);
            for (std::size_t n = most; n > keep; --n) {
                if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
            }
        }
        std::string out = held_.substr(0, held_.size() - keep);
        held_.erase(0, held_.size() - keep);
        return out;
    }
    std::string flush() { return std::exchange(held_, {}); }

  private:
    const std::vector<std::string>& stops_;
    std::string held_;
};

// While a recorder listens, the device's steps are timed one by one and given to it.
class DeviceWatch {
  public:
    DeviceWatch(observe::Recorder* recorder, model::DeviceEngine* device)
        : recorder_(recorder), device_(recorder ? device : nullptr) {
        if (device_) device_->watch(true);
    }
    ~DeviceWatch() {
        if (device_) device_->watch(false);
    }
    DeviceWatch(const DeviceWatch&) = delete;
    DeviceWatch& operator=(const DeviceWatch&) = delete;

    // What the device did since `begin` on the recorder's clock.
    void take(double begin) const {
        if (!device_) return;
        const std::vector<Stage> stages = device_->take_stages();
        recorder_->add_stages(stages, begin, stages.size() * sizeof(cuda::Stamp));
    }

  private:
    observe::Recorder* recorder_;
    model::DeviceEngine* device_;
};

}  // namespace

const char* stop_reason_name(StopReason reason) {
    switch (reason) {
        case StopReason::length:
            return "length";
        case StopReason::end_of_text:
            return "end_of_text";
        case StopReason::stop_string:
            return "stop_string";
        case StopReason::context_full:
            return "context_full";
        case StopReason::cancelled:
            return "cancelled";
    }
    return "?";
}

Session::Session(model::Engine& engine) : engine_(engine), seq_(engine.cache().open()) {
    cached_.reserve(static_cast<std::size_t>(engine.options().context));
}

Session::~Session() { engine_.cache().close(seq_); }

Tensor Session::prefill(std::span<const std::int32_t> prompt,
                        const std::function<bool()>& cancelled, std::int64_t& computed) {
    const auto context = static_cast<std::size_t>(engine_.options().context);
    if (prompt.empty()) {
        throw Error::input({.field = "prompt",
                            .problem = "there is nothing to start from: the prompt is empty and "
                                       "the model's tokenizer has no beginning-of-text token",
                            .remedy = "give a prompt with -p"});
    }
    if (prompt.size() >= context) {
        throw Error::input({.field = "prompt",
                            .value = std::to_string(prompt.size()) + " tokens",
                            .problem = "does not fit into the context of " +
                                       std::to_string(context) + " with a token to spare",
                            .remedy = "shorten it or raise --ctx"});
    }
    // At least the last token is computed again: its logits are what we want.
    std::size_t common = 0;
    while (common + 1 < prompt.size() && common < cached_.size() &&
           cached_[common] == prompt[common]) {
        ++common;
    }
    engine_.cache().truncate(seq_, static_cast<std::int64_t>(common));
    cached_.resize(common);

    Tensor logits;
    const auto most = static_cast<std::size_t>(engine_.options().max_batch);
    // On a device parts are as large as they can be: a pass takes some milliseconds, parts of few
    // tokens take other kernels, and the bits must not depend on how fast the first pass was.
    std::size_t chunk = cancelled && !engine_.device() ? std::min(most, kFirstPart) : most;
    while (cached_.size() < prompt.size()) {
        if (cancelled && cancelled()) return {};
        const Clock::time_point start = Clock::now();
        const auto part =
            prompt.subspan(cached_.size(), std::min(chunk, prompt.size() - cached_.size()));
        const bool last = cached_.size() + part.size() == prompt.size();
        const model::BatchItem item{
            seq_, part, last ? model::BatchItem::Logits::last : model::BatchItem::Logits::none};
        logits = engine_.forward({&item, 1});
        cached_.insert(cached_.end(), part.begin(), part.end());
        computed += static_cast<std::int64_t>(part.size());
        if (seconds_since(start) < kQuickPart) chunk = std::min(most, 2 * chunk);
    }
    return logits;
}

// The next token; an error about the logits says whose they are.
std::int32_t Session::draw(DecodeLoop& loop) const {
    try {
        return loop.next().front().id;
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::input) throw;
        ErrorInfo info = error.info();
        info.file = engine_.model().source;
        throw Error(error.kind(), info);
    }
}

Generated Session::generate(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                            const OnText& on_text) {
    const text::Tokenizer* tokenizer = engine_.model().tokenizer.get();
    MR_CHECK(tokenizer != nullptr, "generation needs a tokenizer");
    Generated out;
    if (options.max_tokens <= 0) return out;

    observe::Recorder* const recorder = options.recorder;
    const DeviceWatch watch(recorder, engine_.device());
    const observe::Recording recording(recorder, engine_.ledger());
    Ledger before = engine_.ledger();
    Clock::time_point start = Clock::now();
    out.prompt_tokens = static_cast<std::int64_t>(prompt.size());
    Tensor logits;
    {
        const observe::Span span(recorder, "prefill");
        if (recorder) recorder->begin_step("prefill", out.prompt_tokens);
        logits = prefill(prompt, options.cancelled, out.prefill.tokens);
        if (engine_.device()) engine_.device()->synchronize();  // else decode is timed with it
        watch.take(0);
    }
    out.prefill.seconds = seconds_since(start);
    out.prefill.ledger = engine_.ledger().since(before);
    if (!logits) {
        out.reason = StopReason::cancelled;
        return out;
    }

    model::DecodeRow row;
    row.seq = seq_;
    row.params = options.sampling;
    row.window = std::max(options.repeat_window, 0);
    row.recent.assign(prompt.end() - static_cast<std::ptrdiff_t>(std::min(
                                         prompt.size(), static_cast<std::size_t>(row.window))),
                      prompt.end());
    row.most = std::min<std::int64_t>(
        options.max_tokens,
        engine_.options().context - static_cast<std::int64_t>(cached_.size()) + 1);
    // After nothing but the beginning-of-text token the answer begins a text of its own.
    const bool at_start = prompt.size() == 1 && tokenizer->bos() == prompt[0];
    text::StreamDecoder stream(*tokenizer, {.skip_special = true, .at_start = at_start});
    StopFilter filter(options.stop);
    bool refused = false;  // on_text wants no more
    const auto show = [&](const std::string& text) {
        const observe::Span span(recorder, "print");
        out.text += text;
        refused = !text.empty() && on_text && !on_text(text);
        return !refused;
    };

    before = engine_.ledger();
    start = Clock::now();
    DecodeLoop loop(engine_, logits, {std::move(row)});
    for (;;) {
        if (options.cancelled && options.cancelled()) {
            out.reason = StopReason::cancelled;
            break;
        }
        // The last token is fed back now.
        if (!out.ids.empty() &&
            static_cast<std::int64_t>(cached_.size()) >= engine_.options().context) {
            out.reason = StopReason::context_full;
            break;
        }
        const std::int32_t token = [&] {
            const observe::Span span(recorder, out.ids.empty() ? "sample" : "decode");
            if (recorder && !out.ids.empty()) recorder->begin_step("decode", 1);
            const double begin = recorder ? recorder->now() : 0;
            const std::int32_t id = draw(loop);
            watch.take(begin);
            return id;
        }();
        if (!out.ids.empty()) {
            cached_.push_back(out.ids.back());  // not before: a step may fail
            ++out.decode.tokens;
        }
        out.ids.push_back(token);
        if (!options.ignore_end && tokenizer->is_end_of_generation(token)) {
            out.reason = StopReason::end_of_text;
            break;
        }
        bool stopped = false;
        if (!show(filter.push(stream.push(token), stopped))) {
            out.reason = StopReason::cancelled;
            break;
        }
        if (stopped) {
            out.reason = StopReason::stop_string;
            break;
        }
        if (static_cast<int>(out.ids.size()) >= options.max_tokens) {
            out.reason = StopReason::length;
            break;
        }
    }
    out.decode.seconds = seconds_since(start);
    out.decode.ledger = engine_.ledger().since(before);
    if (out.reason != StopReason::stop_string && !refused) {
        bool ignored = false;
        std::string rest = filter.push(stream.flush(), ignored);
        if (!ignored) rest += filter.flush();
        show(rest);
    }
    return out;
}

}  // namespace mr::decode
