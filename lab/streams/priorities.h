// A short kernel beside a long one that fills the device.
#pragma once

#include <vector>

#include "lab/streams/arrays.h"
#include "lab/streams/streams.h"

namespace mr::streams {

// Alone, beside the long one with the same priority, and with a higher one. `compute`: seconds of a
// kernel of `iterations` over the whole array. The short one's result is compared bit by bit.
std::vector<Latency> measure_priorities(Arrays& arrays, int iterations, double compute,
                                        int repetitions, bool timelines);

}  // namespace mr::streams
