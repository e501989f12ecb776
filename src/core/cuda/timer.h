// Times work on the device: captured in a graph, replayed, measured by events.
#pragma once

#include <utility>
#include <vector>

#include "core/cuda/device.h"
#include "core/median.h"

namespace mr::cuda {

// Median seconds of one body(i), i = 0, 1, ... calls - 1, launched on `stream` from one graph; give
// each call its own memory if caches must not help. Without `graph` the calls are launched one by
// one.
template <typename Body>
double seconds_per_call(const Stream& stream, int calls, Body&& body, int replays = 9,
                        bool graph = true) {
    const auto all = [&] {
        for (int i = 0; i < calls; ++i) body(i);
    };
    all();  // a first call may allocate
    stream.synchronize();
    Graph captured;
    if (graph) captured = Graph::capture(stream, all);
    std::vector<double> seconds;
    for (int i = 0; i < replays + 2; ++i) {
        const Event begin(true), end(true);
        stream.record(begin);
        if (graph) {
            captured.launch(stream);
        } else {
            all();
        }
        stream.record(end);
        end.synchronize();
        if (i >= 2) seconds.push_back(end.seconds_since(begin) / calls);
    }
    return median(std::move(seconds));
}

}  // namespace mr::cuda
