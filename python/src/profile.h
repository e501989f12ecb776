// A generation recorded stage by stage, for tables, pages and traces.
#pragma once

#include <string>
#include <vector>

#include "core/arena.h"
#include "decode/generate.h"
#include "model/engine.h"
#include "observe/recorder.h"
#include "observe/roofline.h"
#include "observe/trace.h"

namespace mr::python {

class Ticket;

struct Profile {
    decode::Generated made;
    std::string prompt, summary;
    observe::RunNames names;
    std::vector<observe::HostSpan> spans;
    std::vector<observe::Step> steps;
    std::vector<observe::Roofline> phases;  // decode, then prefill; only those with steps
    observe::Ceilings ceilings;
    MemoryPlan plan;

    std::string table() const;
    void save_html(const std::string& path) const;
    void save_trace(const std::string& path) const;
};

// Runs the prompt on the engine, which does nothing else meanwhile.
void run_profile(model::Engine& engine, std::string prompt, decode::GenerateOptions options,
                 double load_seconds, const Ticket& ticket, Profile& out);

}  // namespace mr::python
