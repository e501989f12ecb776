#include "profile.h"

#include <utility>

#include "cli/engine.h"
#include "decode/prompt.h"
#include "decode/session.h"
#include "observe/device_bandwidth.h"
#include "observe/run_page.h"
#include "observe/run_report.h"
#include "worker.h"

namespace mr::python {

std::string Profile::table() const {
    std::string out;
    for (const observe::Roofline& phase : phases) out += observe::roofline_table(phase) + "\n";
    return out + summary + "\n";
}

void Profile::save_html(const std::string& path) const {
    observe::write_page(
        path, observe::run_page({names, summary, prompt, made.text, spans, steps, phases, plan}));
}

void Profile::save_trace(const std::string& path) const {
    observe::write_trace(path, names, spans, steps, ceilings);
}

void run_profile(model::Engine& engine, std::string prompt, decode::GenerateOptions options,
                 double load_seconds, const Ticket& ticket, Profile& out) {
    observe::Recorder recorder;
    options.recorder = &recorder;
    options.keep = decode::Keep::words;
    options.cancelled = [&] { return ticket.cancelled(); };
    decode::Session session(engine);
    out.made = session.generate(decode::encode_prompt(engine.model(), prompt), options);
    const bool gpu = engine.options().cuda;
    out.ceilings = observe::ceilings_of(gpu, *engine.context().pool, 0.2, true);
    out.prompt = std::move(prompt);
    out.names = {engine.model().source, observe::device_name(gpu)};
    out.spans = recorder.spans();
    out.steps = recorder.steps();
    for (const char* phase : {"decode", "prefill"}) {
        observe::Roofline made = observe::make_roofline(out.steps, phase, out.ceilings);
        if (made.steps > 0) out.phases.push_back(std::move(made));
    }
    out.summary = observe::summary_line(
        cli::report_of(engine.model().spec, out.made, load_seconds, out.ceilings.read),
        observe::place_of(gpu));
    out.plan = model::plan_engine(engine.model(), engine.options());
}

}  // namespace mr::python
