// The options that several commands share, in one place.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "core/dtype.h"

namespace mr::cli {

struct SharedOptions {
    std::string model;      // empty: the bundled one
    std::string tokenizer;  // empty: the one in or beside the model
    std::string device = "auto";
    int threads = 0;       // 0: all cores
    std::int64_t ctx = 0;  // 0: the model's own
    std::string kv_type = "f32";
    bool no_repack = false;  // use the weights as the file has them
    bool json = false;

    DType kv_dtype() const { return *dtype_from_name(kv_type); }
};

// MODEL, --tokenizer
void add_model_options(CLI::App& command, SharedOptions& options);
// --device, --threads, --ctx, --kv-type, --no-repack
void add_engine_options(CLI::App& command, SharedOptions& options);
// --device, --threads alone
void add_machine_options(CLI::App& command, SharedOptions& options);
void add_json_option(CLI::App& command, SharedOptions& options);

// Throws Error (device) where the device is not to be had.
void check_device(const SharedOptions& options);
int thread_count(const SharedOptions& options);

// The model that was named, or the bundled one: $MILLRACE_MODEL, else beside the installed program,
// else in the source tree.
std::string model_source(const SharedOptions& options);

}  // namespace mr::cli
