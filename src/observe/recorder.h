// A run written down as it happens: what the host did when, and the stages of every step. Tables,
// traces and pages are made from it afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/ledger.h"

namespace mr::observe {

// What the host was busy with. Times are seconds on the recorder's clock.
struct HostSpan {
    std::string name;  // "load", "prefill", "decode", "sample", "print"
    double begin = 0, seconds = 0;
};

// A pass over the model and what belongs to it (its sampling, its printing).
struct Step {
    std::string phase;                         // "prefill" or "decode"
    std::int64_t tokens = 0;                   // that it computed
    double begin = 0, seconds = 0;             // for the host, until the next step began
    std::vector<Stage> stages;                 // their begins count from the step's
    std::uint64_t to_device = 0, to_host = 0;  // bytes copied meanwhile
    std::uint64_t stamps = 0;  // ... of to_host: the times of `stages`, which are for reports alone
    // Of a pass that fills in tokens: those of blocks that it completed. `tokens` are its rows
    // then.
    std::optional<std::int64_t> made = std::nullopt;
};

class Recorder {
  public:
    Recorder() = default;
    // Every step that has ended goes to `take`, and neither steps nor spans are kept: for sums over
    // runs that may have no end.
    using TakeStep = std::function<void(const Step&)>;
    explicit Recorder(TakeStep take) : take_(std::move(take)) {}
    Recorder(const Recorder&) = delete;
    Recorder& operator=(const Recorder&) = delete;

    double now() const;  // seconds since the recorder was made

    // Ops that run on the CPU, and copies, are taken from the engine's ledger; null detaches. The
    // ledger lives at least as long as it is attached.
    void attach(Ledger* ledger);

    // Ends the step before, if any. `fills`: a pass that fills in tokens.
    void begin_step(std::string phase, std::int64_t tokens, bool fills = false);
    // A token that the current step made, of a pass that fills them in.
    void add_made();
    void end_step();
    // Stages that a device timed in the current step: cuda::Timeline::read(). `begin` is when, on
    // this clock, the first of them began, as far as the host knows; they are moved later where the
    // device was still busy with those of the last call, since it does one thing after the other.
    // `stamps`: bytes that were copied from the device to know them.
    void add_stages(const std::vector<Stage>& stages, double begin, std::uint64_t stamps = 0);
    void add_span(std::string name, double begin, double seconds);

    const std::vector<Step>& steps() const { return steps_; }
    const std::vector<HostSpan>& spans() const { return spans_; }

  private:
    StageLog log_;  // whose start is the clock's zero
    Ledger* ledger_ = nullptr;
    bool open_ = false;               // the last step is still going on
    CopyRecord to_device_, to_host_;  // the ledger's when the step began
    double device_free_ = 0;          // when the last stage of a device ended
    TakeStep take_;                   // none: everything is kept
    std::vector<Step> steps_;         // with the one that is going on
    std::vector<HostSpan> spans_;
};

// Something the host does, from here to the end of the scope: an NVTX range, and a span of the
// recorder where there is one.
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

// Attaches a recorder (which may be null) to a ledger for as long as the scope lasts, and ends the
// last step with it.
class Recording {
  public:
    Recording(Recorder* recorder, Ledger& ledger) : recorder_(recorder) {
        if (recorder_) recorder_->attach(&ledger);
    }
    ~Recording() {
        if (recorder_) recorder_->attach(nullptr);
    }
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

  private:
    Recorder* recorder_;
};

}  // namespace mr::observe
