// Results of `bench serve` for one load level: as JSON, and as a line of its table.
#pragma once

#include <cstdint>
#include <string>

#include "bench/serve/load.h"
#include "cli/json.h"
#include "cli/model_server.h"

namespace mr::cli {

// Counters of a server in this process.
struct Counts {
    std::uint64_t passes = 0, generated = 0, prompt = 0, found = 0, queued = 0;
    double in_queue = 0;  // seconds, over all requests
};
// Waits for the last pass of texts that have just ended.
Counts counts_of(const ModelServer& server);

Json level_json(const bench::LoadPlan& plan, const bench::LoadMeasured& measured);
Json server_json(const Counts& before, const Counts& after);

// `where`: a device, or a URL.
std::string level_title(const std::string& model, const std::string& where,
                        const bench::LoadShape& shape);
std::string level_text(const Json& level);

}  // namespace mr::cli
