// millrace info: the machine, a model, and what the model needs.
#include "cli/info.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/engine.h"
#include "cli/generation.h"
#include "cli/json.h"
#include "cli/model_name.h"
#include "cli/options.h"
#include "cli/rate.h"
#include "cli/terminal.h"
#include "cli/version.h"
#include "core/arena.h"
#include "core/cpu.h"
#include "core/cuda/device.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "millrace/millrace.h"
#include "model/cpu/repack.h"
#include "model/cuda/device_layout.h"
#include "model/fits.h"
#include "model/io/source.h"
#include "observe/bandwidth.h"
#include "observe/compute_peak.h"
#include "observe/device_bandwidth.h"
#include "ops/linear/gemm_library.h"

namespace mr::cli {
namespace {

struct InfoOptions {
    SharedOptions shared;
    ContextOptions context;
    int batch = 1;
    std::string memory;  // of another machine; empty: this one's
};

// The GPU that a run would use; none if it is not asked for.
std::optional<cuda::DeviceInfo> find_gpu(const SharedOptions& options) {
    return options.device == "cpu" ? std::nullopt : cuda::device();
}

std::string version_name(int number) {
    return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

std::string dotted(int capability) {
    return fmt::format("{}.{}", capability / 10, capability % 10);
}

Json gpu_json(const cuda::DeviceInfo& gpu) {
    Json json = {{"name", gpu.name},
                 {"compute_capability", dotted(gpu.capability)},
                 {"code_for", dotted(gpu.sm)},
                 {"multiprocessors", gpu.multiprocessors},
                 {"memory_bytes", gpu.memory_bytes},
                 {"free_bytes", gpu.free_bytes},
                 {"l2_bytes", gpu.l2_bytes},
                 {"driver", version_name(gpu.driver)},
                 {"runtime", version_name(gpu.runtime)}};
    const cuda::GemmLibrary library = cuda::gemm_library();
    json["cublaslt"] = {{"found", library.found}, {"about", library.about}};
    json.update(observe::ceilings_json(observe::device_ceilings()));
    return json;
}

Json machine_json(const SharedOptions& options, const std::optional<cuda::DeviceInfo>& gpu) {
    const CpuInfo cpu = cpu_info();
    ThreadPool pool(thread_count(options));
    const observe::Bandwidth bandwidth =
        observe::measure_read_bandwidth(pool, 0, 0.3, observe::kQuickLookBytes);
    const observe::ComputePeak peak = observe::compute_peak(pool);
    Json paths = Json::array();
    for (const Isa isa : available_isas()) paths.push_back(isa_name(isa));
    Json json = {{"version", millrace::version()},
                 {"cpu", cpu.model},
                 {"cores", cpu.cores},
                 {"threads", pool.size()},
                 {"memory_bytes", cpu.memory_bytes},
                 {"cache_bytes", observe::last_level_cache_bytes()},
                 {"isa", isa_name(active_isa())},
                 {"isas", paths},
                 {"read_bandwidth_gb_s", bandwidth.best / 1e9},
                 {"f32_gflop_s", peak.f32 / 1e9},
                 {"int8_gflop_s", peak.int8 / 1e9},
                 {"bf16_gflop_s", peak.bf16 / 1e9},
                 {"devices", Json::array({"cpu"})}};
    if (gpu) {
        json["devices"].push_back("cuda");
        json["gpu"] = gpu_json(*gpu);
    } else {
        json["gpu"] = nullptr;
        if (options.device != "cpu") {
            json["why_no_gpu"] = cuda::why_no_device();
            json["gpu_passed_over"] = !cuda::passed_over().empty();
        }
    }
    return json;
}

const char* scaling_name(model::RopeSpec::Scaling scaling) {
    switch (scaling) {
        case model::RopeSpec::Scaling::none:
            return "none";
        case model::RopeSpec::Scaling::linear:
            return "linear";
        case model::RopeSpec::Scaling::llama3:
            return "llama3";
        case model::RopeSpec::Scaling::yarn:
            return "yarn";
    }
    return "?";
}

Json model_json(const model::Model& model) {
    const model::ModelSpec& spec = model.spec;
    Json json = {
        {"source", model.source},
        {"format", model.format},
        {"family", spec.family},
        {"name", spec.name},
        {"parameters", spec.parameters()},
        {"layers", spec.layers},
        {"dim", spec.dim},
        {"hidden", spec.hidden},
        {"heads", spec.heads},
        {"kv_heads", spec.kv_heads},
        {"head_dim", spec.head_dim},
        {"vocab", spec.vocab},
        {"context", spec.context},
        {"tied_embeddings", spec.tied_embeddings},
        {"norm", spec.norm == model::NormKind::rms ? "rms" : "layer"},
        {"residual", spec.residual == model::Residual::parallel ? "parallel" : "sequential"}};
    if (spec.rope.rotary > 0) {
        json["rope"] = {{"rotary", spec.rope.rotary},
                        {"theta", spec.rope.theta},
                        {"scaling", scaling_name(spec.rope.scaling)},
                        {"factor", spec.rope.factor}};
    }
    json["diffusion"] = nullptr;
    if (spec.diffusion) {
        json["diffusion"] = {{"mask", spec.diffusion->mask},
                             {"block", spec.diffusion->block},
                             {"sub_block", spec.diffusion->sub_block},
                             {"shifted", spec.diffusion->shifted}};
    }
    json["weight_bytes_by_type"] = bytes_by_type(model);
    json["weights_mapped_bytes"] = model.weights.mapped_bytes;
    json["weights_copied_bytes"] = model.weights.owned_bytes;
    json["bytes_per_token"] = model.weights.bytes_per_token();
    if (model.tokenizer) {
        json["tokenizer"] = {{"kind", model.tokenizer->kind()},
                             {"vocab", model.tokenizer->vocab_size()},
                             {"chat_template", !model.tokenizer->chat_template().empty()}};
        if (model.tokenizer->bos()) json["tokenizer"]["bos"] = *model.tokenizer->bos();
        if (model.tokenizer->eos()) json["tokenizer"]["eos"] = *model.tokenizer->eos();
    } else {
        json["tokenizer"] = nullptr;
    }
    json["generation"] = generation_json(model);
    return json;
}

InfoPlan make_plan(const model::Model& model, const InfoOptions& options,
                   const std::optional<cuda::DeviceInfo>& gpu) {
    model::EngineOptions wanted = engine_options(options.shared);
    wanted.max_sequences = options.batch;
    make_stream(options.context, model.spec, wanted);
    model::require_stream(model.spec, wanted);
    InfoPlan plan;
    plan.available = gpu ? gpu->free_bytes : cpu_info().memory_bytes;
    std::uint64_t room = model::room_for_engine(model, wanted);
    if (!options.memory.empty()) room = plan.available = parse_memory(options.memory, "--memory");
    plan.whole_pool = model::with_defaults(model, wanted, 0).pool;
    plan.engine = model::with_defaults(model, wanted, room);
    plan.memory = model::plan_engine(model, plan.engine);
    return plan;
}

Json plan_json(const InfoPlan& plan) {
    Json items = Json::array();
    for (const MemoryPlan::Item& item : plan.memory.items()) {
        items.push_back({{"name", item.name}, {"bytes", item.bytes}, {"mapped", item.mapped}});
    }
    const model::EngineOptions& engine = plan.engine;
    // For a streaming sequence, the positions that its ring of pages holds.
    Json json = {{engine.stream ? "ring" : "ctx", engine.context},
                 {"batch", engine.max_sequences},
                 {"pool", engine.pool},
                 {"whole_pool", plan.whole_pool},
                 {"items", items},
                 {"total_bytes", plan.memory.total()},
                 {"available_bytes", plan.available},
                 {"fits", plan.fits()}};
    if (engine.stream) {
        json["sinks"] = engine.stream.sinks;
        json["window"] = engine.stream.window;
    }
    return json;
}

// Context that fits for every weight type and KV type, into the free memory of the GPU, or into the
// machine's memory. `repack`: the CPU's weights are repacked.
Json fits_json(const model::Model& model, const InfoPlan& plan, bool repack) {
    const bool cuda = plan.engine.cuda;
    std::uint64_t other = 0;  // activations, scratch
    for (const MemoryPlan::Item& item : plan.memory.items()) {
        if (!item.name.starts_with("weights") && item.name != "KV cache") other += item.bytes;
    }
    std::vector<DType> kv_types = {DType::f32, DType::f16};
    if (cuda) kv_types.push_back(DType::bf16);
    Json rows = Json::array();
    const model::WeightBytes bytes =
        cuda     ? static_cast<model::WeightBytes>(model::device_weight_bytes)
        : repack ? model::repacked_weight_bytes
                 : model::weight_bytes;
    for (const model::Fit& fit :
         model::what_fits(model.spec, plan.available, other, kv_types, bytes)) {
        rows.push_back({{"weights", dtype_name(fit.weights)},
                        {"weight_bytes", fit.weight_bytes},
                        {"kv", dtype_name(fit.kv)},
                        {"ctx", fit.context}});
    }
    return {{"device", cuda ? "cuda" : "cpu"}, {"memory_bytes", plan.available}, {"rows", rows}};
}

// Without MODEL and without a bundled one there is still a machine to describe.
bool has_model(const SharedOptions& options) {
    if (!options.model.empty()) return true;
    try {
        return !model_source(options).empty();
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::usage) throw;  // $MILLRACE_MODEL is not set to one
        return false;
    }
}

// The model with the types and bytes of its weights in a run, but without the weights: it may be
// larger than the memory.
model::Model describe(const SharedOptions& options) {
    const Disabled off = disabled(options);
    model::Model model = model::planned_model(
        model_source(options),
        {.tokenizer = tokenizer_source(options.tokenizer), .ignore_keys = options.ignore_keys});
    for (const std::string& said : model.notes) remark(one_line(said));
    // The GPU's plan uses the weights as they are.
    if (!use_cuda(options) && !off.repack) model::plan_repack(model);
    return model;
}

int info(const Command& command, const InfoOptions& options) {
    const InterruptGuard guard;
    require_streaming(command, options.context);
    use_cuda(options.shared);
    std::optional<model::Model> described;
    if (has_model(options.shared)) described = describe(options.shared);
    ProgressLine line;
    line.begin("measuring this machine");
    const std::optional<cuda::DeviceInfo> gpu = find_gpu(options.shared);
    Json json = {{"machine", machine_json(options.shared, gpu)}};
    line.remove();
    std::string text = machine_text(json["machine"]);
    if (described) {
        const model::Model& model = *described;
        const InfoPlan plan = make_plan(model, options, gpu);
        json["model"] = model_json(model);
        json["memory_plan"] = plan_json(plan);
        json["what_fits"] = fits_json(model, plan, !disabled(options.shared).repack);
        const Json& machine = json["machine"];
        const Json& reads = gpu && machine["gpu"].contains("read_gb_s")
                                ? machine["gpu"]["read_gb_s"]
                                : machine["read_bandwidth_gb_s"];
        text += model_text(model, reads.get<double>() * 1e9);
        text += plan_text(plan);
        text += fits_text(json["what_fits"], model.spec.context);
    }
    out(options.shared.json ? json_text(json) : text);
    return 0;
}

}  // namespace

void add_info(const Command& app, Action& action) {
    auto options = std::make_shared<InfoOptions>();
    const Command command =
        app.add_subcommand("info", "Describe this machine, a model, and the memory it needs");
    add_model_options(command, options->shared);
    add_engine_options(command, options->shared);
    command.add_option("--batch", options->batch, "Sequences at a time, for the memory plan")
        .range(1, 65536)
        .shows_default();
    command
        .add_option("--memory", options->memory,
                    "Plan for a machine with this much free memory, as in 24GB, instead of this "
                    "one")
        .shown_as("SIZE");
    add_context_options(command, options->context, {"full", "streaming"},
                        "texts that are longer than the context, for the memory plan: full stops "
                        "at its end");
    add_json_option(command, options->shared);
    command.footer(
        "Examples:\n  millrace info\n  millrace info model.gguf --ctx 8192 --batch 4\n"
        "  millrace info random:qwen3-14b --memory 16GB\n"
        "  millrace info random:llama-3-8b --batch 256 --ctx 4096 --pool 400000\n"
        "  millrace info random:llama-3-8b --context streaming --window 2044");
    command.callback([options, command, &action] {
        action = [options, command] { return info(command, *options); };
    });
}

}  // namespace mr::cli
