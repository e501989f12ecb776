#include "lab/fusion/fusion.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/cuda/device.h"
#include "core/error.h"
#include "lab/fusion/score.h"

namespace mr::fusion {
namespace {

using model::EngineOptions;

struct Step {
    const char* name;
    bool EngineOptions::*on;  // the option it switches on in addition; null: none
};
constexpr Step kSteps[] = {
    {"separate kernels", nullptr},
    {"residual + norm", &EngineOptions::add_in_norm},
    {"both norms in one pass", &EngineOptions::norms_together},
    {"residual in the product", &EngineOptions::add_in_product},
    {"norm in the product", &EngineOptions::fuse},
    {"dependent launch", &EngineOptions::dependent_launch},
    {"graph", &EngineOptions::graph},
    {"one kernel", &EngineOptions::persistent},
};

// Why a step that joins kernels has as many as the one before.
std::string why_as_many(const Step& step, const model::Model& model) {
    if (step.on == &EngineOptions::norms_together) {
        return model.spec.residual == model::Residual::parallel
                   ? "attention and MLP compute in different types"
                   : "the residual is sequential: each norm is of another sum";
    }
    const char* type = dtype_name(model.weights.layers.front().o.dtype);
    if (step.on == &EngineOptions::fuse) {
        return std::string("products of ") + type + " take no norm in on this GPU";
    }
    if (step.on == &EngineOptions::persistent) {
        return std::string("there is none for ") + type + ", this shape and this GPU";
    }
    return "no operation of this model is joined by it";
}

// Why the engine, with `kernels` per step, is not a rung above `last`; empty: it is one.
std::string why_absent(const Step& step, const model::Model& model, int kernels, const Rung* last) {
    if (!last || step.on == &EngineOptions::graph) return {};
    if (step.on == &EngineOptions::dependent_launch) {
        const std::optional<cuda::DeviceInfo> gpu = cuda::device();
        return gpu && gpu->sm >= 90 ? "" : "it needs code for compute capability 9.0";
    }
    return kernels < last->kernels ? "" : why_as_many(step, model);
}

}  // namespace

bool Ladder::same_nll() const {
    return std::all_of(rungs.begin(), rungs.end(),
                       [](const Rung& rung) { return !rung.absent.empty() || rung.same_nll; });
}

EngineOptions nothing_fused(const EngineOptions& options) {
    EngineOptions none = options;
    for (const Step& step : kSteps) {
        if (step.on) none.*step.on = false;
    }
    return none;
}

bool same_to_4_digits(double a, double b) {
    if (!std::isfinite(a) || !std::isfinite(b)) return false;
    const double most = std::max(std::abs(a), std::abs(b));
    if (most == 0) return true;
    const double unit = std::pow(10.0, std::floor(std::log10(most)) - 3);
    return std::abs(a - b) < unit / 2;
}

Ladder climb(const std::shared_ptr<const model::Model>& model,
             const std::shared_ptr<const model::DeviceWeights>& weights, const Options& options,
             const Progress& progress) {
    Ladder ladder;
    EngineOptions engine_options = nothing_fused(options.engine);
    std::optional<Rung> last;
    for (const Step& step : kSteps) {
        Rung rung;
        rung.name = step.name;
        if (step.on && !(options.engine.*step.on)) {
            rung.absent = "it is switched off";
            ladder.rungs.push_back(rung);
            continue;
        }
        if (step.on) engine_options.*step.on = true;
        const std::unique_ptr<model::Engine> engine =
            model::make_engine(model, engine_options, weights);
        const decode::MeasureOptions& measure = options.measure;
        const auto work = engine->step_launches(1, std::int64_t{measure.prompt} + measure.steps);
        rung.absent = why_absent(step, *model, work.kernels, last ? &*last : nullptr);
        if (rung.absent.empty()) {
            const decode::Measured m = decode::measure_decode(*engine, measure, progress);
            const auto tokens = static_cast<double>(m.tokens);
            rung.seconds = m.median_seconds() / tokens;
            rung.kernels = work.kernels;
            rung.launches = work.launches;
            rung.bytes = static_cast<double>(m.ledger.total().bytes()) / tokens;
            rung.nll = score_fed(*engine, options.ids, progress);
            if (last) rung.gain = 1 - rung.seconds / last->seconds;
            last = rung;
        }
        ladder.rungs.push_back(rung);
    }
    for (Rung& rung : ladder.rungs) {
        rung.same_nll = rung.absent.empty() && same_to_4_digits(rung.nll, last->nll);
    }
    ladder.gain = 1 - last->seconds / ladder.rungs.front().seconds;
    return ladder;
}

}  // namespace mr::fusion
