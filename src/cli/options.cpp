#include "cli/options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "core/cpu.h"
#include "core/cuda/device.h"
#include "core/error.h"

namespace mr::cli {

namespace fs = std::filesystem;

void add_model_options(const Command& command, SharedOptions& options) {
    command.add_option(
        "model", options.model,
        "A GGUF file, a Hugging Face folder, a llama2.c .bin, or random:SHAPE[:TYPE]; "
        "the bundled model where none is given");
    command.add_option("--tokenizer", options.tokenizer,
                       "tokenizer.json, tokenizer.bin or a GGUF file, where the model has none");
}

void add_machine_options(const Command& command, SharedOptions& options) {
    command.add_option("--device", options.device, "auto, cpu or cuda")
        .from_environment("MILLRACE_DEVICE")
        .one_of({"auto", "cpu", "cuda"})
        .shows_default();
    command.add_option("--threads", options.threads, "Threads to compute with; 0: all cores")
        .range(0, 1024);
}

void add_engine_options(const Command& command, SharedOptions& options) {
    add_machine_options(command, options);
    command.add_option("--ctx", options.ctx, "Positions of context; 0: as many as the model has")
        .range(std::int64_t{0}, std::int64_t{1} << 31);
    command
        .add_option("--kv-type", options.kv_type, "Type of the KV cache: f32, f16, bf16 (on a GPU)")
        .one_of({"auto", "f32", "f16", "bf16"})
        .shows_default();
    command.add_flag("--check-nan", options.check_nan,
                     "Stop at the first NaN or infinity and name the layer where it appeared: to "
                     "find damaged weights and overflow; slower");
    command.add_flag("--no-repack", options.no_repack,
                     "Read quantised weights where the file is mapped: opens at once, decodes "
                     "slower (CPU)");
    command.add_flag("--no-fuse", options.no_fuse, "Every operation is a kernel of its own (GPU)");
    command.add_flag("--no-graph", options.no_graph,
                     "Launch the kernels of a step one by one (GPU)");
    command.add_flag("--no-dependent-launch", options.no_dependent_launch,
                     "Kernels start when their predecessors have ended (GPU)");
    command.add_flag(
        "--no-batch-products", options.no_batch_products,
        "Products of 5 tokens and more read the weights once for every 8 of them (GPU)");
    command.add_flag(
        "--no-resident-attention", options.no_resident_attention,
        "Attention of many sequences or long keys starts a block for every part, and prefill "
        "takes mma.sync instead of wgmma (GPU)");
    command.add_flag(
        "--no-persistent", options.no_persistent,
        "A decode step is five kernels a layer instead of one for all (GPU; also where "
        "the device is shared through MPS)");
}

void add_json_option(const Command& command, SharedOptions& options) {
    command.add_flag("--json", options.json, "Print one JSON object instead of text");
}

bool use_cuda(const SharedOptions& options) {
    if (options.device == "cpu") return false;
    if (options.device == "cuda") cuda::require_device();
    return cuda::device().has_value();
}

int thread_count(const SharedOptions& options) {
    return options.threads > 0 ? options.threads : cpu_info().cores;
}

std::string model_source(const SharedOptions& options) {
    if (!options.model.empty()) return options.model;
    if (const char* named = std::getenv("MILLRACE_MODEL"); named && *named) return named;
    std::vector<fs::path> places;
    std::error_code ignored;
    const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
    if (!program.empty()) {
        places.push_back(program.parent_path() / "../share/millrace/models" / MR_BUNDLED_MODEL);
    }
    places.push_back(fs::path(MR_SOURCE_MODELS) / MR_BUNDLED_MODEL);
    for (const fs::path& place : places) {
        if (fs::exists(place, ignored)) return place.lexically_normal().string();
    }
    throw Error::usage({.field = "MODEL",
                        .problem = "none was given, and the bundled model (" MR_BUNDLED_MODEL
                                   ") is not beside the program",
                        .remedy = "name a GGUF file, a Hugging Face folder or a llama2.c .bin, or "
                                  "set MILLRACE_MODEL"});
}

}  // namespace mr::cli
