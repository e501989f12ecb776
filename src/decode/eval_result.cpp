// Options and results of an evaluation.
#include <algorithm>
#include <cmath>

#include "decode/eval.h"
#include "text/documents.h"

namespace mr::decode {

const char* context_mode_name(ContextMode mode) {
    switch (mode) {
        case ContextMode::full:
            return "full";
        case ContextMode::window:
            return "window";
        case ContextMode::streaming:
            return "streaming";
        case ContextMode::recompute:
            return "recompute";
    }
    return "?";
}

model::Stream stream_of(const EvalOptions& options) {
    const model::Stream& s = options.stream;
    if (options.mode == ContextMode::streaming) return s;
    if (options.mode == ContextMode::window) return {0, s.sinks + s.window};
    return {};
}

double EvalResult::perplexity() const { return std::exp(nll); }

double EvalResult::bits_per_byte() const {
    return bytes > 0
               ? nll * static_cast<double>(tokens) / static_cast<double>(bytes) / std::log(2.0)
               : 0;
}

double EvalResult::nats_per_document() const {
    return documents > 0 ? nll * static_cast<double>(tokens) / static_cast<double>(documents) : 0;
}

double EvalResult::seconds_per_token() const {
    return tokens > 0 ? phase.seconds / static_cast<double>(tokens) : 0;
}

int eval_logit_rows(const model::ModelSpec& spec) {
    constexpr std::int64_t kBytes = std::int64_t{64} << 20;
    // A piece of a window has kCut rows. A server scores prompts with as many, and draws from one.
    return static_cast<int>(
        std::clamp<std::int64_t>(kBytes / (std::int64_t{4} * spec.vocab), model::kCut + 1, 256));
}

std::vector<std::string_view> split_documents(std::string_view text, const EvalOptions& options) {
    std::vector<std::string_view> out;
    text::Documents documents(text, options.split);
    const auto most = static_cast<std::size_t>(std::max(options.limit, 0));
    for (std::string_view document; most == 0 || out.size() < most;) {
        if (!documents.next(document)) break;
        out.push_back(document);
    }
    return out;
}

}  // namespace mr::decode
