// The options that several commands share, in one place.
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
    std::int64_t pool = 0;  // tokens in the cache, over all sequences; 0: what fits
    std::string kv_type = "auto";
    std::string disable;  // the list of --disable: disabled() reads it
    bool check_nan = false;
    bool json = false;

    std::optional<DType> kv_dtype() const { return dtype_from_name(kv_type); }  // none: auto
};

// What is switched off: to see what it is worth, to find what is at fault, and where the device is
// shared through MPS (docs/cuda-engine.md, "Switches"). Words of the lists have dashes for the
// underscores.
struct Disabled {
    bool repack = false;  // on the CPU: weights are used as the file has them
    // On the GPU, as in model::EngineOptions.
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
// --device, --threads alone
void add_machine_options(const Command& command, SharedOptions& options);
void add_threads_option(const Command& command, SharedOptions& options);  // --threads alone
void add_json_option(const Command& command, SharedOptions& options);

// Whether to compute on the GPU. Throws Error (device) where it was asked for and is not to be had.
bool use_cuda(const SharedOptions& options);
int thread_count(const SharedOptions& options);
// What --disable or MILLRACE_DISABLE names. Throws Error (usage) for a word that names nothing.
Disabled disabled(const SharedOptions& options);

}  // namespace mr::cli
