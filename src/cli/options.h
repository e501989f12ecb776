// Options that several commands share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/parser.h"
#include "core/dtype.h"

namespace mr::cli {

struct SharedOptions {
    std::string model;      // empty: the bundled one
    std::string tokenizer;  // empty: the one in or beside the model
    std::vector<std::string> ignore_keys;
    std::string device = "auto";
    int threads = 0;        // 0: all cores
    std::int64_t ctx = 0;   // of one sequence; 0: the model's own
    std::int64_t pool = 0;  // cached tokens over all sequences; 0: what fits
    std::string kv_type = "auto";
    std::string disable;  // value of --disable: parsed by disabled()
    bool check_nan = false;
    bool json = false;

    std::optional<DType> kv_dtype() const { return dtype_from_name(kv_type); }  // none: auto
};

// Optimisations that are switched off: to measure their worth, to find a fault, and for a device
// shared through MPS (docs/cuda-engine.md, "Switches"). The words of the lists have dashes for
// underscores.
struct Disabled {
    bool repack = false;  // CPU: weights keep the file's layout
    // GPU: as in model::EngineOptions.
    bool fuse = false, add_in_product = false, add_in_norm = false, norms_together = false,
         graph = false, dependent_launch = false, batch_products = false,
         resident_attention = false, persistent = false, loop = false, head_records = false;
};

// MODEL, --tokenizer, --ignore-key
void add_model_options(const Command& command, SharedOptions& options);
void add_ignore_key_option(const Command& command, SharedOptions& options);
// --device, --threads, --ctx, --kv-type, --check-nan
void add_engine_options(const Command& command, SharedOptions& options);
// --disable: for commands that measure
void add_disable_option(const Command& command, SharedOptions& options);
// only --device, --threads
void add_machine_options(const Command& command, SharedOptions& options);
void add_threads_option(const Command& command, SharedOptions& options);  // --threads alone
void add_json_option(const Command& command, SharedOptions& options);

// Whether to compute on the GPU. Throws Error (device) if it was asked for and is not available.
bool use_cuda(const SharedOptions& options);
// For a command that measures the GPU alone. Throws Error (device) where there is none.
void require_gpu(const char* command);
int thread_count(const SharedOptions& options);
// The switches in --disable or MILLRACE_DISABLE. Throws Error (usage) for an unknown word.
Disabled disabled(const SharedOptions& options);

}  // namespace mr::cli
