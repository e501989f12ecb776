// A run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.
#pragma once

#include <span>
#include <string>

#include "observe/recorder.h"
#include "observe/roofline.h"

namespace mr::observe {

// Names of the run that a trace or a page shows.
struct RunNames {
    std::string model;
    std::string device;  // "cpu", or the GPU's name
};

// Writes {"traceEvents": [...]}: a track of the host's spans and one of the device's stages as
// complete events (microseconds, by their begin), and counters per step: GB/s, and bytes copied
// between host and device. The file appears whole or not at all (core/output_file.h), and replaces
// nothing but an earlier trace.
void write_trace(const std::string& path, const RunNames& names, std::span<const HostSpan> spans,
                 std::span<const Step> steps, const Ceilings& ceilings);

}  // namespace mr::observe
