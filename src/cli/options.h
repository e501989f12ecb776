// The options that several commands share, in one place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/parser.h"
#include "core/dtype.h"

namespace mr::cli {

struct SharedOptions {
    std::string model;      // empty: the bundled one
    std::string tokenizer;  // empty: the one in or beside the model
    std::string device = "auto";
    int threads = 0;        // 0: all cores
    std::int64_t ctx = 0;   // of one sequence; 0: the model's own
    std::int64_t pool = 0;  // tokens in the cache, over all sequences; 0: what fits
    std::string kv_type = "auto";
    bool no_repack = false;  // use the weights as the file has them
    // On the GPU.
    bool no_fuse = false, no_graph = false, no_dependent_launch = false, no_batch_products = false,
         no_resident_attention = false;
    bool no_persistent = false;
    bool check_nan = false;
    bool json = false;

    std::optional<DType> kv_dtype() const { return dtype_from_name(kv_type); }  // none: auto
};

// MODEL, --tokenizer
void add_model_options(const Command& command, SharedOptions& options);
// --device, --threads, --ctx, --kv-type, --check-nan, and the switches
void add_engine_options(const Command& command, SharedOptions& options);
// --device, --threads alone
void add_machine_options(const Command& command, SharedOptions& options);
void add_json_option(const Command& command, SharedOptions& options);

// Whether to compute on the GPU. Throws Error (device) where it was asked for and is not to be had.
bool use_cuda(const SharedOptions& options);
int thread_count(const SharedOptions& options);

// The model that was named, or the bundled one: $MILLRACE_MODEL, else beside the installed program,
// else in the source tree.
std::string model_source(const SharedOptions& options);

}  // namespace mr::cli
