// What a run did and how close it came to the machine's limits, computed from its ledger.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "core/ledger.h"

namespace mr::observe {

// Generation in its two phases: the whole prompt, then token by token.
struct RunReport {
    double load_seconds = 0;
    std::int64_t prompt_tokens = 0;
    // Prompt tokens computed in the prefill. With a diffusion model the end of the prompt may
    // belong to the first block, and does not count.
    std::int64_t prefill_tokens = 0;
    double prefill_seconds = 0;
    Ledger prefill;
    // Passes that read all weights for one token. The first token of an answer comes from the
    // prefill, so this is one less than the tokens made. If `passes` is set: all tokens.
    std::int64_t decode_steps = 0;
    bool together = false;               // several texts share passes: `decode_steps` counts tokens
    std::optional<std::int64_t> passes;  // of a diffusion model: many tokens per pass
    double decode_seconds = 0;
    Ledger decode;
    double read_bandwidth = 0;  // bytes per second, measured; 0: not measured
    bool stated = false;        // ... or stated by the user

    double prefill_tokens_per_second() const;
    double tokens_per_second() const;
    double bytes_per_token() const;   // read from memory, by the contracts of the ops
    double bytes_per_second() const;  // during decode
    double fraction_of_bandwidth() const;
};

// Where a run computes: the machine or the GPU, and its cache.
struct RunPlace {
    std::string reader = "this machine";
    std::string cache = "the cache";
    std::uint64_t cache_bytes = 0;
};

// Whether the run read faster than the memory was measured: other work disturbed that measurement.
bool disturbed(const RunReport& report, const RunPlace& place);

// Whether the cache holds what a token reads, so that the memory's rate is no limit.
bool fits(const RunReport& report, const RunPlace& place);

// One line: tok/s, GB/s, per cent of the read bandwidth, bytes per token, and the prompt's rate.
// Notes if the bytes of a token fit into the cache, and if the run read faster than the memory was
// measured: then other work disturbed that measurement.
std::string summary_line(const RunReport& report, const RunPlace& place = {});

// A table of ops: calls, time and its share, bytes, GB/s, GFLOP/s.
std::string op_table(const Ledger& ledger);

// {"load_s", "prompt_tokens", "prefill_tokens", "prefill_s", "prefill_tok_s", "decode_steps",
//  "decode_s", "tok_s", "gb_s", "read_bandwidth_gb_s", "percent_of_bandwidth", "bytes_per_token"},
// the bandwidth and the per cent of it null if it was not measured, the per cent also if other work
// disturbed that; of a model that fills in tokens
// "decode_tokens", "passes", "tokens_per_pass" instead of "decode_steps".
nlohmann::ordered_json decoded_json(std::int64_t tokens, const std::optional<std::int64_t>& passes);
nlohmann::ordered_json report_json(const RunReport& report, const RunPlace& place = {});
// {"linear": {"calls", "seconds", "bytes_read", "bytes_written", "flops"}, ...,
//  "host_to_device_bytes", "device_to_host_bytes"}
nlohmann::ordered_json ledger_json(const Ledger& ledger);

}  // namespace mr::observe
