#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cli/generation.h"
#include "cli/info.h"
#include "cli/terminal.h"
#include "model/names.h"
#include "observe/units.h"

namespace mr::cli {
namespace {

std::string gpu_text(const Json& m) {
    if (m["gpu"].is_null()) {
        return m.contains("why_no_gpu")
                   ? fmt::format("gpu         {}: {}\n",
                                 m["gpu_passed_over"].get<bool>() ? "not used" : "none",
                                 m["why_no_gpu"].get<std::string>())
                   : "";
    }
    const Json& gpu = m["gpu"];
    const auto capability = gpu["compute_capability"].get<std::string>();
    const auto code = gpu["code_for"].get<std::string>();
    std::string text = fmt::format(
        "gpu         {}, compute capability {}{}, {} multiprocessors\n"
        "            {} of memory, {} free; driver {}, runtime {}\n",
        gpu["name"].get<std::string>(), capability,
        code == capability ? "" : fmt::format(" (this build has code for {})", code),
        gpu["multiprocessors"].get<int>(), format_bytes(gpu["memory_bytes"].get<std::uint64_t>()),
        format_bytes(gpu["free_bytes"].get<std::uint64_t>()), gpu["driver"].get<std::string>(),
        gpu["runtime"].get<std::string>());
    std::string rates;
    const auto rate = [&](const char* key, const char* before, double unit, const char* after) {
        if (!gpu.contains(key)) return;
        rates += fmt::format("{}{}{:.1f} {}", rates.empty() ? "" : ", ", before,
                             gpu[key].get<double>() / unit, after);
    };
    rate("read_gb_s", "reads ", 1, "GB/s");
    rate("copy_gb_s", "copies ", 1, "GB/s");
    rate("to_device_gb_s", "takes ", 1, "GB/s");
    rate("to_host_gb_s", "gives ", 1, "GB/s");
    rate("matrix_gflop_s", "multiplies ", 1e3, "TFLOP/s");
    text += fmt::format("            {}\n", rates);
    const Json& library = gpu["cublaslt"];
    const auto about = library["about"].get<std::string>();
    return text + (library["found"].get<bool>()
                       ? fmt::format("            prompts are multiplied by {}\n", about)
                       : fmt::format("            prompts are multiplied by our own kernels, which "
                                     "are slower: {}\n",
                                     one_line(about)));
}

// 0: there was not enough memory to measure it.
std::string speed_text(double gb_s) {
    return gb_s > 0 ? fmt::format("{:.1f} GB/s", gb_s) : "at a speed that was not measured";
}

std::string peaks_text(const Json& m) {
    std::string text;
    for (const char* type : {"f32", "int8", "bf16"}) {
        const double rate = m[fmt::format("{}_gflop_s", type)].get<double>();
        if (rate <= 0) continue;
        text += fmt::format("{}{} in {}", text.empty() ? "" : ", ", observe::figure(rate), type);
    }
    return text;
}

std::string memory_text(std::uint64_t bytes, bool cuda) {
    return fmt::format("{} {}", format_bytes(bytes), cuda ? "that the GPU has free" : "of memory");
}

// The largest first.
std::string types_text(const std::map<std::string, std::uint64_t>& bytes_by_type) {
    std::vector<std::pair<std::uint64_t, std::string>> sorted;
    sorted.reserve(bytes_by_type.size());
    for (const auto& [name, bytes] : bytes_by_type) sorted.emplace_back(bytes, name);
    std::sort(sorted.rbegin(), sorted.rend());
    std::string text;
    for (const auto& [bytes, name] : sorted) {
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, format_bytes(bytes));
    }
    return text;
}

// How a diffusion model fills in tokens; empty for an autoregressive one.
std::string diffusion_text(const model::ModelSpec& spec) {
    if (!spec.diffusion) return "";
    const model::DiffusionSpec& d = *spec.diffusion;
    std::string blocks = d.block > 0 ? fmt::format("blocks of {}", d.block) : "full attention";
    if (d.sub_block > 0) blocks += fmt::format(" in parts of {}", d.sub_block);
    return fmt::format("diffusion   mask token {}, {}, logits {}\n", d.mask, blocks,
                       d.shifted ? "shifted by one" : "aligned");
}

}  // namespace

std::map<std::string, std::uint64_t> bytes_by_type(const model::Model& model) {
    std::map<std::string, std::uint64_t> bytes;
    const auto count = [&](const Tensor& tensor) {
        bytes[dtype_name(tensor.dtype)] += tensor.bytes();
    };
    for (const model::RoleAt at : model::roles_of(model.spec)) {
        count(model::role_slot(model.weights, at));
    }
    const Tensor& head = model.weights.head;
    // Repacking makes a second copy of a tied table.
    if (model.spec.tied_embeddings && head.dtype != model.weights.embedding.dtype) count(head);
    return bytes;
}

std::string machine_text(const Json& m) {
    return gpu_text(m).insert(
        0,
        fmt::format("machine     {}, {}, {} of memory\n"
                    "            kernels {}; reads {} with {}\n"
                    "            computes, GFLOP/s: {}\n",
                    m["cpu"].get<std::string>(), observe::counted(m["cores"].get<int>(), "core"),
                    format_bytes(m["memory_bytes"].get<std::uint64_t>()),
                    m["isa"].get<std::string>(), speed_text(m["read_bandwidth_gb_s"].get<double>()),
                    observe::counted(m["threads"].get<int>(), "thread"), peaks_text(m)));
}

std::string model_text(const model::Model& model, double read_bandwidth) {
    const model::ModelSpec& s = model.spec;
    std::string text = fmt::format("model       {}{}\n", one_line(model.source),
                                   s.name.empty() ? "" : fmt::format(" ({})", one_line(s.name)));
    text += fmt::format("            {}, {}, {} parameters\n", s.family, model.format,
                        observe::short_count(static_cast<double>(s.parameters())));
    text +=
        fmt::format("shape       {} layers, dim {}, hidden {}, {} heads of {} ({} for k and v)\n",
                    s.layers, s.dim, s.hidden, s.heads, s.head_dim, s.kv_heads);
    text += fmt::format("            vocab {}{}, context {}\n", s.vocab,
                        s.tied_embeddings ? " (tied)" : "", s.context);
    text += diffusion_text(s);
    text += fmt::format(
        "weights     {}; {}\n", types_text(bytes_by_type(model)),
        model.format == "random"
            ? fmt::format("{} in memory", format_bytes(model.weights.owned_bytes))
            : fmt::format("{} mapped, {} copied", format_bytes(model.weights.mapped_bytes),
                          format_bytes(model.weights.owned_bytes)));
    if (model.tokenizer) {
        text += fmt::format("tokenizer   {}, {} tokens\n", model.tokenizer->kind(),
                            model.tokenizer->vocab_size());
    } else {
        text += "tokenizer   none: give one with --tokenizer\n";
    }
    text += generation_text(model);
    const auto per_token = static_cast<double>(model.weights.bytes_per_token());
    if (read_bandwidth == 0) return text;
    const bool fills = model.spec.diffusion.has_value();  // many tokens per pass
    text += fmt::format("light speed {} {}: {} of weights per {} at {:.1f} GB/s\n",
                        observe::figure(read_bandwidth / per_token), fills ? "passes/s" : "tok/s",
                        observe::short_bytes(per_token), fills ? "pass" : "token",
                        read_bandwidth / 1e9);
    return text;
}

std::string plan_text(const InfoPlan& plan) {
    const model::EngineOptions& engine = plan.engine;
    const std::string context = engine.stream
                                    ? fmt::format("--context streaming --sinks {} --window {}",
                                                  engine.stream.sinks, engine.stream.window)
                                    : fmt::format("--ctx {}", engine.context);
    std::string text = fmt::format("memory      for {} --batch {} --pool {}", context,
                                   engine.max_sequences, engine.pool);
    if (plan.cut()) {
        text += fmt::format(" (cut to what fits; {} x {} tokens need {})", engine.max_sequences,
                            plan.whole_pool / engine.max_sequences, plan.whole_pool);
    }
    text += "\n";
    for (const MemoryPlan::Item& item : plan.memory.items()) {
        text += fmt::format("            {:>11}  {}\n", format_bytes(item.bytes), item.name);
    }
    text += fmt::format("            {:>11}  in all", format_bytes(plan.memory.total()));
    if (!plan.fits()) text += "; does not fit into " + memory_text(plan.available, engine.cuda);
    return text + "\n";
}

std::string fits_text(const Json& fits, int context) {
    std::string text = fmt::format(
        "what fits   into {}: the largest --ctx; the model was trained for {}\n",
        memory_text(fits["memory_bytes"].get<std::uint64_t>(), fits["device"] == "cuda"), context);
    std::string header = fmt::format("            {:<8}{:>12}", "weights", "");
    std::string lines, last;
    for (const Json& row : fits["rows"]) {
        const auto type = row["weights"].get<std::string>();
        if (type == fits["rows"][0]["weights"].get<std::string>()) {
            header += fmt::format("{:>14}", "KV " + row["kv"].get<std::string>());
        }
        if (type != last) {
            lines += fmt::format("{}            {:<8}{:>12}", last.empty() ? "" : "\n", type,
                                 format_bytes(row["weight_bytes"].get<std::uint64_t>()));
            last = type;
        }
        const auto ctx = row["ctx"].get<std::int64_t>();
        lines += fmt::format("{:>14}", ctx > 0 ? std::to_string(ctx) : "-");
    }
    return text + header + "\n" + lines + "\n";
}

}  // namespace mr::cli
