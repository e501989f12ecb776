// A generation recorded stage by stage, with what its tables, page and trace show.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/arena.h"
#include "decode/generate.h"
#include "model/engine.h"
#include "observe/recorder.h"
#include "observe/roofline.h"
#include "observe/run_report.h"
#include "observe/trace.h"

namespace mr::decode {

observe::RunReport report_of(const model::ModelSpec& spec, const Generated& made,
                             double load_seconds, double read_bandwidth);

struct Profiled {
    Generated made;
    std::string prompt;
    observe::RunNames names;
    observe::RunReport report;
    std::string summary;  // the report as a line
    std::shared_ptr<const observe::Recorder> recorder;
    std::vector<observe::Roofline> phases;  // prefill, then decode; only those with steps
    observe::Ceilings ceilings;             // measured after the generation
    MemoryPlan plan;

    std::string table() const;  // the phases, and the summary
    // Timeline and trace are of the steps that the profiler has kept.
    void save_html(const std::string& path) const;
    void save_trace(const std::string& path) const;
};

class Profiler {
  public:
    // `every_step`: steps and spans are kept; otherwise only their sums, so that a text may have
    // any length.
    explicit Profiler(bool every_step);
    Profiler(const Profiler&) = delete;
    Profiler& operator=(const Profiler&) = delete;

    // Its clock starts with the profiler.
    observe::Recorder& recorder() { return *recorder_; }

    // Runs the prompt on the engine, which does nothing else meanwhile; once for a profiler.
    Generated generate(model::Engine& engine, const std::string& prompt, GenerateOptions options,
                       const OnText& on_text = {});
    // What was recorded, under ceilings that are measured now.
    Profiled report(model::Engine& engine, std::string prompt, Generated made, double load_seconds);

  private:
    void add(const observe::Step& step);

    std::vector<observe::RooflineSums> sums_;
    std::shared_ptr<observe::Recorder> recorder_;
};

}  // namespace mr::decode
