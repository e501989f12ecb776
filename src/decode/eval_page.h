// Evaluations of one text in several modes, as a page: the NLL over the position, and what each
// mode costs.
#pragma once

#include <string>
#include <vector>

#include "decode/eval.h"
#include "observe/page.h"

namespace mr::decode {

struct EvalMode {
    ContextMode mode = ContextMode::full;
    model::Stream stream{};    // of all modes but `full`
    std::int64_t context = 0;  // where `full` cuts
    std::int64_t sample = 0;   // EvalOptions::sample, the same of all
    EvalResult result;
};

struct EvalDescription {
    std::string model, text, device;
    std::vector<EvalMode> modes;
};

// What the modes see of a text, in words.
std::string mode_words(const EvalMode& mode);

// NLL by position as it is drawn: a running mean over as many neighbouring buckets as hold a share
// of the tokens (1 / kCurveShares), and of few samples more: kCurveTokens, or a quarter of them.
inline constexpr std::int64_t kCurveShares = 40, kCurveTokens = 100;
std::vector<std::pair<double, double>> running_mean(const std::vector<EvalResult::Bucket>& curve);

observe::Page eval_page(const EvalDescription& evaluation);

}  // namespace mr::decode
