// What `millrace-lab overlap` measures: how much of a gradient exchange is hidden by the backward
// pass, with one real rank on a GPU and ghosts for the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/progress.h"
#include "lab/overlap/traffic.h"
#include "model/spec.h"

namespace mr::overlap {

struct Options {
    int batch = 32, seq = 1024;
    int ranks = 8;                // the real one is the first
    std::vector<double> links{};  // bytes per second in each direction
    std::int64_t bucket_bytes = std::int64_t{25} << 20;
    std::vector<int> occupy{};  // multiprocessors
    int steps = 10, warmup = 3;
    std::uint64_t seed = 1;
};

struct LinkResult {
    double rate = 0;
    bool host = false;             // ghosts are in host memory; else on the device
    bool by_engines = true;        // the driver was asked to use no multiprocessors
    std::uint64_t sent_bytes = 0;  // in one direction, per exchange
    double link_seconds = 0;       // their time at the given rate
    int buckets = 0;
    Times times;  // medians

    double reached() const {  // bytes per second, of the exchange alone
        return times.communication > 0 ? static_cast<double>(sent_bytes) / times.communication : 0;
    }
};

struct OccupiedResult {
    int multiprocessors = 0;
    double seconds = 0;       // a step without an exchange: the median
    double held_seconds = 0;  // time occupied in a step
};

struct Report {
    std::string gpu;
    int multiprocessors = 0;
    std::uint64_t parameters = 0;
    ReadyBytes bytes;
    std::vector<LinkResult> links;
    std::vector<OccupiedResult> occupied;
};

// Error (device) if there is no GPU, or if an exchange gives other bits than the tree over ranks.
// Error (usage) if `occupy` has more multiprocessors than the GPU can spare.
Report measure(const model::ModelSpec& spec, const Options& options, const Progress& progress = {});

}  // namespace mr::overlap
