// Options and results of an evaluation.
#include <algorithm>
#include <cmath>

#include "decode/eval.h"

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
    // A piece of a window has kCut rows.
    return static_cast<int>(
        std::clamp<std::int64_t>(kBytes / (std::int64_t{4} * spec.vocab), model::kCut, 256));
}

std::vector<std::string_view> split_documents(std::string_view text, const EvalOptions& options) {
    std::vector<std::string_view> out;
    while (!text.empty() && (options.limit <= 0 || static_cast<int>(out.size()) < options.limit)) {
        const std::size_t end =
            options.split.empty() ? std::string_view::npos : text.find(options.split);
        std::string_view document = text.substr(0, end);
        text.remove_prefix(end == std::string_view::npos ? text.size()
                                                         : end + options.split.size());
        if (!options.split.empty()) {
            document.remove_prefix(
                std::min(document.find_first_not_of(" \t\r\n"), document.size()));
            if (document.ends_with('\n')) document.remove_suffix(1);
        }
        if (!document.empty()) out.push_back(document);
    }
    return out;
}

}  // namespace mr::decode
