// Autoregressive generation: one sequence, its prompt, and text as it is made.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ledger.h"
#include "model/forward.h"
#include "observe/recorder.h"
#include "ops/sample/sample.h"

namespace mr::decode {

class DecodeLoop;

struct GenerateOptions {
    int max_tokens = 256;
    ops::SampleParams sampling;
    int repeat_window = 64;         // how many of the last tokens the repetition penalty looks at
    std::vector<std::string> stop;  // generation ends before any of these; they are not printed
    bool ignore_end = false;        // go on past the end-of-text token
    // Asked before every token and between parts of a long prompt; true ends the generation.
    std::function<bool()> cancelled;
    observe::Recorder* recorder = nullptr;  // where steps and their stages are written down
};

enum class StopReason { length, end_of_text, stop_string, context_full, cancelled };
const char* stop_reason_name(StopReason reason);

// What a phase of a run took and moved.
struct Phase {
    std::int64_t tokens = 0;
    double seconds = 0;
    Ledger ledger;

    double tokens_per_second() const {
        return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
    }
    // Read from memory, by the contracts of the ops.
    double bytes_per_second() const {
        return seconds > 0 ? static_cast<double>(ledger.total().bytes_read) / seconds : 0;
    }
    double bytes_per_token() const {
        return tokens > 0
                   ? static_cast<double>(ledger.total().bytes_read) / static_cast<double>(tokens)
                   : 0;
    }
};

struct Generated {
    std::vector<std::int32_t> ids;  // without the prompt; with the end token where one came
    std::string text;
    StopReason reason = StopReason::length;
    std::int64_t prompt_tokens = 0;
    Phase prefill;  // tokens that were computed, not those found in the cache
    Phase decode;   // tokens that were computed, not the first one, which prefill gave
};

class Session {
  public:
    // Called with text that can be shown: whole UTF-8 characters, nothing that may still turn out
    // to be a stop string. Returning false ends the generation, and
    // it is not called again.
    using OnText = std::function<bool(std::string_view)>;

    explicit Session(model::Engine& engine);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // Continues `prompt`, which is the whole history. What the cache already holds of it (the
    // common prefix with the last call) is not computed again. Throws Error (input) where the
    // prompt is empty or does not fit into the context.
    Generated generate(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                       const OnText& on_text = {});

  private:
    // Logits of the last token; none where it was cancelled. Counts the tokens it computes.
    Tensor prefill(std::span<const std::int32_t> prompt, const std::function<bool()>& cancelled,
                   std::int64_t& computed);
    std::int32_t draw(DecodeLoop& loop) const;

    model::Engine& engine_;
    model::SeqId seq_;
    std::vector<std::int32_t> cached_;  // the tokens whose keys and values are in the cache
};

}  // namespace mr::decode
