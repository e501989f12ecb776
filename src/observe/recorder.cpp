#include "observe/recorder.h"

#include <algorithm>
#include <utility>

#include "observe/nvtx.h"

namespace mr::observe {

double Recorder::now() const { return Moment::now().seconds_since(log_.start); }

void Recorder::attach(Ledger* ledger) {
    end_step();
    if (ledger_) ledger_->watch(nullptr);
    ledger_ = ledger;
    if (ledger_) ledger_->watch(&log_);
}

void Recorder::begin_step(std::string phase, std::int64_t tokens, bool fills) {
    end_step();
    log_.stages.clear();  // stages before the first step belong to no step
    if (ledger_) {
        to_device_ = ledger_->host_to_device();
        to_host_ = ledger_->device_to_host();
    }
    steps_.push_back({std::move(phase), tokens, now(), 0, {}, 0, 0, 0, {}});
    if (fills) steps_.back().made = 0;
    open_ = true;
}

void Recorder::add_made() {
    if (open_ && steps_.back().made) ++*steps_.back().made;
}

void Recorder::end_step() {
    if (!open_) return;
    open_ = false;
    Step& step = steps_.back();
    step.seconds = now() - step.begin;
    for (Stage stage : log_.stages) {
        stage.begin -= step.begin;
        step.stages.push_back(stage);
    }
    log_.stages.clear();
    std::stable_sort(step.stages.begin(), step.stages.end(),
                     [](const Stage& a, const Stage& b) { return a.begin < b.begin; });
    if (ledger_) {
        step.to_device = ledger_->host_to_device().bytes - to_device_.bytes;
        step.to_host = ledger_->device_to_host().bytes - to_host_.bytes;
    }
    if (!take_) return;
    take_(step);
    steps_.clear();
}

void Recorder::add_stages(const std::vector<Stage>& stages, double begin, std::uint64_t stamps) {
    if (!open_ || stages.empty()) return;
    Step& step = steps_.back();
    step.stamps += stamps;
    begin = std::max(begin, device_free_);
    for (Stage stage : stages) {
        stage.begin += begin;
        device_free_ = std::max(device_free_, stage.begin + stage.work.seconds);
        stage.begin -= step.begin;
        step.stages.push_back(stage);
    }
}

void Recorder::add_span(std::string name, double begin, double seconds) {
    if (!take_) spans_.push_back({std::move(name), begin, seconds});
}

Span::Span(Recorder* recorder, const char* name) : recorder_(recorder), name_(name) {
    nvtx_push(name);
    if (recorder_) begin_ = recorder_->now();
}

Span::~Span() {
    if (recorder_) recorder_->add_span(name_, begin_, recorder_->now() - begin_);
    nvtx_pop();
}

}  // namespace mr::observe
