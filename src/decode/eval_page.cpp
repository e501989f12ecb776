#include "decode/eval_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "observe/chart_svg.h"
#include "observe/html.h"

namespace mr::decode {
namespace {

using observe::Chart;
using observe::html_escaped;

int hue_of(ContextMode mode) {
    switch (mode) {
        case ContextMode::full:
            return 275;
        case ContextMode::window:
            return 5;
        case ContextMode::streaming:
            return 210;
        case ContextMode::recompute:
            return 150;
    }
    return 0;
}

// Where it has more digits than say anything, the power.
std::string perplexity(const EvalResult& result) {
    return result.nll < std::log(1e7) ? fmt::format("{:.4f}", result.perplexity())
                                      : fmt::format("e^{:.1f}", result.nll);
}

std::string row(const EvalMode& mode, bool samples) {
    const EvalResult& result = mode.result;
    std::string at_samples;
    if (samples) {  // where documents are cut, some of the sampled tokens are not predicted
        at_samples = result.cut > 0 ? "<td>-" : fmt::format("<td>{:.4f}", result.sample_nll);
    }
    return fmt::format(
        "<tr><td><span class=\"key\" style=\"background:hsl({} 65% 50%)\"></span>{}<td>{}<td>{:.4f}"
        "{}<td>{}<td>{:.4f}<td>{:.4f}<td>{}<td>{}</tr>\n",
        hue_of(mode.mode), context_mode_name(mode.mode), result.tokens, result.nll, at_samples,
        perplexity(result), result.bits_per_byte(), 1e3 * result.seconds_per_token(),
        result.evicted, html_escaped(mode_words(mode)));
}

std::string chart(const std::vector<EvalMode>& modes) {
    Chart chart{.title = "NLL by position, a curve for each mode",
                .x_name = "position in the document, tokens",
                .may_be_log = true};
    for (const EvalMode& mode : modes) {
        Chart::Curve curve{context_mode_name(mode.mode), hue_of(mode.mode),
                           running_mean(mode.result.curve), false};
        curve.dots = curve.points.size() < 3;
        chart.curves.push_back(std::move(curve));
    }
    return chart_svg(chart);
}

}  // namespace

std::string mode_words(const EvalMode& mode) {
    const model::Stream& s = mode.stream;
    const std::int64_t seen = std::int64_t{s.sinks} + s.window;
    switch (mode.mode) {
        case ContextMode::full:
            return fmt::format("all before a token, cut every {} tokens", mode.context);
        case ContextMode::window:
            return fmt::format("the last {} tokens", seen);
        case ContextMode::streaming:
            return fmt::format("the first {} tokens and the last {}", s.sinks, s.window);
        case ContextMode::recompute:
            return fmt::format("the last {} tokens, encoded anew for {}", seen,
                               mode.sample > 0 ? fmt::format("{} samples a document", mode.sample)
                                               : "every token");
    }
    return {};
}

std::vector<std::pair<double, double>> running_mean(const std::vector<EvalResult::Bucket>& curve) {
    std::int64_t all = 0;
    for (const EvalResult::Bucket& bucket : curve) all += bucket.tokens;
    const std::int64_t enough =
        std::max((all + kCurveShares - 1) / kCurveShares, std::min(all / 4, kCurveTokens));
    std::vector<std::pair<double, double>> points;
    for (std::size_t i = 0; i < curve.size(); ++i) {
        std::int64_t tokens = 0;
        double nats = 0, positions = 0;
        const auto take = [&](std::size_t at) {
            const auto weight = static_cast<double>(curve[at].tokens);
            tokens += curve[at].tokens;
            nats += curve[at].nats;
            positions += weight * (static_cast<double>(at) + 0.5) * EvalResult::kCurveStep;
        };
        take(i);
        if (tokens == 0) continue;
        for (std::size_t d = 1; tokens < enough && (d <= i || i + d < curve.size()); ++d) {
            if (d <= i) take(i - d);
            if (i + d < curve.size()) take(i + d);
        }
        const auto count = static_cast<double>(tokens);
        // Near the ends several have the same neighbours.
        if (!points.empty() && positions / count <= points.back().first) continue;
        points.emplace_back(positions / count, nats / count);
    }
    return points;
}

std::string eval_page(const EvalDescription& evaluation) {
    std::string html = observe::html_begin("eval of " + evaluation.model);
    html += fmt::format("<h1>{}</h1>\n<p>predicts {}, on {}</p>\n", html_escaped(evaluation.model),
                        html_escaped(evaluation.text), html_escaped(evaluation.device));
    html += "<h2>Negative log-likelihood, nats a token</h2>\n<div class=\"wide\">" +
            chart(evaluation.modes) + "</div>\n";
    html += fmt::format(
        "<p class=\"dim\">A running mean: each point is the mean of {} positions and of as many "
        "of their neighbours as have a {}th of the predicted tokens, and {} at least.</p>\n",
        EvalResult::kCurveStep, kCurveShares, kCurveTokens);
    const bool samples = std::any_of(evaluation.modes.begin(), evaluation.modes.end(),
                                     [](const EvalMode& mode) { return mode.sample > 0; });
    html += fmt::format(
        "<h2>Modes</h2>\n<div class=\"wide\"><table><tr><th>context<th>tokens<th>mean NLL{}"
        "<th>perplexity<th>bits per byte<th>ms per token<th>evicted<th>a token sees</tr>\n",
        samples ? "<th>at samples" : "");
    for (const EvalMode& mode : evaluation.modes) html += row(mode, samples);
    html += "</table></div>\n";
    if (samples) {
        html +=
            "<p class=\"dim\">At samples: the mean NLL of the tokens that were recomputed, in "
            "every mode that predicts them all. The other figures of a mode are those of all "
            "tokens that it "
            "predicts.</p>\n";
    }
    html +=
        "<p class=\"dim\">Time per token: of the whole pass over the text, divided by the tokens "
        "that it predicts. Evicted: tokens that the last one of a document did not see any "
        "more.</p>\n";
    return html + "</body>\n</html>\n";
}

}  // namespace mr::decode
