// What a run did and how far it was from the speed of light of the machine, from its ledger.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "core/ledger.h"

namespace mr::observe {

// Generation in its two phases: the prompt at once, then a token at a time.
struct RunReport {
    double load_seconds = 0;
    std::int64_t prompt_tokens = 0;
    // Of the prompt, those that were computed at once. The end of a prompt that opens the first
    // block of a model that fills in tokens is not.
    std::int64_t prefill_tokens = 0;
    double prefill_seconds = 0;
    Ledger prefill;
    // Passes that read all weights for one token. The first token of an answer comes out of the
    // prefill, so this is one less than what was made. Where `passes` is set, all tokens.
    std::int64_t decode_steps = 0;
    std::optional<std::int64_t> passes;  // of a model that fills in tokens, many in a pass
    double decode_seconds = 0;
    Ledger decode;
    double read_bandwidth = 0;  // bytes a second, measured; 0: not measured

    double prefill_tokens_per_second() const;
    double tokens_per_second() const;
    double bytes_per_token() const;   // read from memory, by the contracts of the ops
    double bytes_per_second() const;  // of decode
    double fraction_of_bandwidth() const;
};

// Where a run computes: what reads its memory, and the cache in front of that.
struct RunPlace {
    std::string reader = "this machine";
    std::string cache = "the cache";
    std::uint64_t cache_bytes = 0;
};

// One line: tok/s, GB/s, per cent of the read bandwidth, bytes per token, and the prompt's rate.
// Says so where the bytes of a token fit into the cache, which memory's bandwidth does not bind.
std::string summary_line(const RunReport& report, const RunPlace& place = {});

// A table of ops: calls, time and its share, bytes, GB/s, GFLOP/s.
std::string op_table(const Ledger& ledger);

// {"load_s", "prompt_tokens", "prefill_tokens", "prefill_s", "prefill_tok_s", "decode_steps",
//  "decode_s", "tok_s", "gb_s", "read_bandwidth_gb_s", "percent_of_bandwidth", "bytes_per_token"};
// of a model that fills in tokens "decode_tokens", "passes", "tokens_per_pass" instead of
// "decode_steps".
nlohmann::ordered_json decoded_json(std::int64_t tokens, const std::optional<std::int64_t>& passes);
nlohmann::ordered_json report_json(const RunReport& report);
// {"linear": {"calls", "seconds", "bytes_read", "bytes_written", "flops"}, ...,
//  "host_to_device_bytes", "device_to_host_bytes"}
nlohmann::ordered_json ledger_json(const Ledger& ledger);

}  // namespace mr::observe
