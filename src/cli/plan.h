// The output of `millrace plan`, for plan.cpp.
#pragma once

#include <string>
#include <vector>

#include "cli/json.h"
#include "train/plan/search.h"

namespace mr::cli {

struct PlanReport {
    std::string model;
    plan::ClusterSpec cluster;
    plan::Job job;
    double tokens = 0;        // to train on; 0: unknown
    std::string calibration;  // source of the shares of the peak
    double compute_uncertainty = 0;
    std::vector<plan::Candidate> layouts;  // the best first; at least one
};

Json plan_json(const PlanReport& report);
std::string plan_text(const PlanReport& report);
// "data 64 x pipeline 16, ZeRO 1, 32 micro-batches of 1, recompute light"
std::string layout_text(const plan::Job& job, const plan::Layout& layout);

}  // namespace mr::cli
