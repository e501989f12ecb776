// Records a run as it happens: the host's activities with their times, and the stages of every
// step. Tables, traces and pages are made from it afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/ledger.h"

namespace mr::observe {

// An activity of the host. Times are seconds on the recorder's clock.
struct HostSpan {
    std::string name;  // "load", "prefill", "decode", "sample", "print"
    double begin = 0, seconds = 0;
};

// A pass over the model, with its sampling and printing.
struct Step {
    std::string phase;                         // "prefill" or "decode"
    std::int64_t tokens = 0;                   // computed in this step
    double begin = 0, seconds = 0;             // on the host's clock, until the next step began
    std::vector<Stage> stages;                 // their begins are relative to the step's
    std::uint64_t to_device = 0, to_host = 0;  // bytes copied during the step
    std::uint64_t stamps = 0;  // part of to_host: the times of `stages`, copied only for reports
    // For a diffusion pass, which fills in tokens: tokens of the blocks it completed; `tokens`
    // counts its rows.
    std::optional<std::int64_t> made = std::nullopt;
};

class Recorder {
  public:
    Recorder() = default;
    // Every finished step goes to `take`, and neither steps nor spans are kept: for sums over runs
    // of unlimited length.
    using TakeStep = std::function<void(const Step&)>;
    explicit Recorder(TakeStep take) : take_(std::move(take)) {}
    Recorder(const Recorder&) = delete;
    Recorder& operator=(const Recorder&) = delete;

    double now() const;  // seconds since the recorder was made

    // Ops that run on the CPU, and copies, are taken from the engine's ledger; null detaches.
    // Either ends the last step. The ledger must live as long as it is attached.
    void attach(Ledger* ledger);

    // Ends the previous step, if any. `fills`: a diffusion pass, which fills in tokens.
    void begin_step(std::string phase, std::int64_t tokens, bool fills = false);
    // Counts a token that the current step completed; only for a diffusion pass.
    void add_made();
    void end_step();
    // Adds stages that a device timed in the current step: cuda::Timeline::read(). `begin` is when
    // the first of them began on this clock, as far as the host knows; they are moved later if the
    // device was still busy with the stages of the last call, since it runs one at a time.
    // `stamps`: bytes copied from the device to read the times.
    void add_stages(const std::vector<Stage>& stages, double begin, std::uint64_t stamps = 0);
    void add_span(std::string name, double begin, double seconds);

    const std::vector<Step>& steps() const { return steps_; }
    const std::vector<HostSpan>& spans() const { return spans_; }

  private:
    StageLog log_;  // its start is the clock's zero
    Ledger* ledger_ = nullptr;
    bool open_ = false;               // the last step has not ended
    CopyRecord to_device_, to_host_;  // the ledger's values when the step began
    double device_free_ = 0;          // when the last stage of a device ended
    TakeStep take_;                   // empty: everything is kept
    std::vector<Step> steps_;         // including the open one
    std::vector<HostSpan> spans_;
};

// An activity of the host, from here to the end of the scope: an NVTX range, and a span of the
// recorder if there is one.
class Span {
  public:
    Span(Recorder* recorder, const char* name);
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

  private:
    Recorder* recorder_;
    const char* name_;
    double begin_ = 0;
};

}  // namespace mr::observe
