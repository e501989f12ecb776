#include "decode/eval_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace mr::decode {
namespace {

using observe::Cell;
using observe::Chart;
using observe::Table;
using observe::Unit;

// Where it has more digits than say anything, the power.
std::string perplexity(const EvalResult& result) {
    return result.nll < std::log(1e7) ? fmt::format("{:.4f}", result.perplexity())
                                      : fmt::format("e^{:.1f}", result.nll);
}

Chart curves(const std::vector<EvalMode>& modes) {
    Chart chart{.title = "Negative log-likelihood, nats per token",
                .x_name = "position in the document, tokens",
                .may_be_log = true};
    for (const EvalMode& mode : modes) {
        Chart::Curve curve{.name = context_mode_name(mode.mode),
                           .points = running_mean(mode.result.curve)};
        curve.dots = curve.points.size() < 3;
        chart.curves.push_back(std::move(curve));
    }
    chart.notes.push_back(fmt::format(
        "A running mean: each point is the mean of {} positions and of as many of their neighbours "
        "as have a {}th of the predicted tokens, and {} at least.",
        EvalResult::kCurveStep, kCurveShares, kCurveTokens));
    return chart;
}

Table mode_table(const std::vector<EvalMode>& modes) {
    const bool samples = std::any_of(modes.begin(), modes.end(),
                                     [](const EvalMode& mode) { return mode.sample > 0; });
    Table table{.title = "Modes",
                .columns = {{"context"}, {"tokens"}, {"mean NLL", Unit::fixed4}},
                .keys = true};
    if (samples) table.columns.push_back({"at samples", Unit::fixed4});
    for (const Table::Column& column :
         std::initializer_list<Table::Column>{{"perplexity"},
                                              {"bits per byte", Unit::fixed4},
                                              {"ms per token", Unit::fixed4},
                                              {"evicted"},
                                              {"a token sees"}}) {
        table.columns.push_back(column);
    }
    for (const EvalMode& mode : modes) {
        const EvalResult& result = mode.result;
        std::vector<Cell> cells{context_mode_name(mode.mode), result.tokens, result.nll};
        // Where documents are cut, some of the sampled tokens are not predicted.
        if (samples) cells.push_back(result.cut > 0 ? Cell() : Cell(result.sample_nll));
        for (Cell cell : {Cell(perplexity(result)), Cell(result.bits_per_byte()),
                          Cell(1e3 * result.seconds_per_token()), Cell(result.evicted),
                          Cell(mode_words(mode))}) {
            cells.push_back(std::move(cell));
        }
        table.rows.push_back({std::move(cells)});
    }
    if (samples) {
        table.notes.push_back(
            "At samples: the mean NLL of the tokens that were recomputed, in every mode that "
            "predicts them all. The other figures of a mode are those of all tokens that it "
            "predicts.");
    }
    table.notes.push_back(
        "Time per token: of the whole pass over the text, divided by the tokens that it predicts. "
        "Evicted: tokens that the last one of a document did not see any more.");
    return table;
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
                               mode.sample > 0 ? fmt::format("{} samples per document", mode.sample)
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

observe::Page eval_page(const EvalDescription& evaluation) {
    observe::Page page("eval of " + evaluation.model);
    page.add_line(fmt::format("predicts {}, on {}", evaluation.text, evaluation.device));
    page.add(curves(evaluation.modes));
    page.add(mode_table(evaluation.modes));
    return page;
}

}  // namespace mr::decode
