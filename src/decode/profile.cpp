#include "decode/profile.h"

#include <fmt/format.h>

#include <utility>

#include "decode/prompt.h"
#include "decode/session.h"
#include "observe/device_bandwidth.h"
#include "observe/run_page.h"
#include "observe/units.h"

namespace mr::decode {

observe::RunReport report_of(const model::ModelSpec& spec, const Generated& made,
                             double load_seconds, double read_bandwidth) {
    observe::RunReport report;
    report.load_seconds = load_seconds;
    report.prompt_tokens = made.prompt_tokens;
    report.prefill_tokens = made.prefill.tokens;
    report.prefill_seconds = made.prefill.seconds;
    report.prefill = made.prefill.ledger;
    report.decode_steps = made.decode.tokens;
    if (spec.diffusion) report.passes = made.passes;
    report.decode_seconds = made.decode.seconds;
    report.decode = made.decode.ledger;
    report.read_bandwidth = read_bandwidth;
    return report;
}

std::string Profiled::table() const {
    std::string out;
    for (const observe::Roofline& phase : phases) out += observe::roofline_table(phase) + "\n";
    return out + summary + "\n";
}

void Profiled::save_html(const std::string& path) const {
    observe::write_page(path,
                        observe::run_page({names, summary, prompt, made.text, recorder->spans(),
                                           recorder->steps(), phases, plan}));
}

void Profiled::save_trace(const std::string& path) const {
    observe::write_trace(path, names, recorder->spans(), recorder->steps(), ceilings);
}

Profiler::Profiler(bool every_step)
    : recorder_(every_step ? std::make_shared<observe::Recorder>()
                           : std::make_shared<observe::Recorder>(
                                 [this](const observe::Step& step) { add(step); })) {
    for (const char* phase : {"prefill", "decode"}) sums_.emplace_back(phase);
}

void Profiler::add(const observe::Step& step) {
    for (observe::RooflineSums& phase : sums_) phase.add(step);
}

Generated Profiler::generate(model::Engine& engine, const std::string& prompt,
                             GenerateOptions options, const OnText& on_text) {
    options.recorder = recorder_.get();
    Session session(engine);
    return session.generate(encode_prompt(engine.model(), prompt), options, on_text);
}

Profiled Profiler::report(model::Engine& engine, std::string prompt, Generated made,
                          double load_seconds) {
    Profiled out;
    out.made = std::move(made);
    out.prompt = std::move(prompt);
    const bool gpu = engine.options().cuda;
    out.ceilings = observe::ceilings_of(gpu, *engine.context().pool, 0.2, true);
    out.names = {engine.model().source, observe::device_name(gpu)};
    out.recorder = recorder_;
    for (const observe::Step& step : recorder_->steps()) add(step);
    for (const observe::RooflineSums& sum : sums_) {
        observe::Roofline phase = sum.under(out.ceilings);
        if (phase.steps > 0) out.phases.push_back(std::move(phase));
    }
    out.report = report_of(engine.model().spec, out.made, load_seconds, out.ceilings.read);
    out.summary = observe::summary_line(out.report, observe::place_of(gpu));
    if (out.made.evicted > 0) {
        out.summary +=
            fmt::format("; {} left the window", observe::counted(out.made.evicted, "token"));
    }
    out.plan = model::plan_engine(engine.model(), engine.options());
    return out;
}

}  // namespace mr::decode
