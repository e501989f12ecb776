// Load on a server with OpenAI's API: clients that send the next request as soon as they are
// answered, or requests that arrive at random times. One thread, plain sockets and epoll.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/serve/wire.h"
#include "core/progress.h"

namespace mr::bench {

// The requests. Prompts differ from their first token on, or after the shared prefix.
struct LoadShape {
    std::string model;              // its id; empty: not sent
    int input = 128, output = 128;  // tokens
    int shared_prefix = 0;          // tokens at the beginning that all prompts share
    bool text = false;              // prompts are words, about a token each, instead of token ids
    std::int64_t vocab = 32000;     // ids are below it
    std::int64_t avoided = -1;      // an id that no prompt contains
    std::uint64_t seed = 1;
};
std::vector<std::int32_t> prompt_ids(const LoadShape& shape, std::uint64_t number);
// The body of request `number`: JSON of /v1/completions.
std::string request_body(const LoadShape& shape, std::uint64_t number);

struct LoadPlan {
    int clients = 1;  // closed loop: each has one pending request
    double rate = 0;  // open loop if not 0: requests per second, a Poisson process
    int requests = 1;
    std::uint64_t first = 0;            // number of the first request
    std::chrono::seconds silence{300};  // a request fails after so long without a byte
};

struct LoadMeasured {
    double seconds = 0;  // from the first request to the last answer's end
    int requests = 0, failed = 0;
    std::string failure;                 // the error of the first failed request
    std::int64_t input = 0, output = 0;  // tokens of complete answers
    // Seconds, for complete answers: until the first token, from when the request was sent or
    // should have been; per token after the first, the mean of each answer; between two tokens.
    std::vector<double> first_token, per_token, gaps;
};

// Throws Error (input) if the server cannot be reached.
LoadMeasured run_load(const Place& place, const LoadShape& shape, const LoadPlan& plan,
                      const Progress& progress = {});

}  // namespace mr::bench
