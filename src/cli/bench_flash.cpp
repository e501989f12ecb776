// Attention on plain tensors: forward and backward, beside PyTorch, and against the unfused
// version.
#include "cli/bench_flash.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>

#include "core/cuda/device.h"
#include "core/error.h"
#include "ops/attention/flash_measure.h"

namespace mr::cli {
namespace {

using cuda::FlashMeasured;
using cuda::FlashShape;

// As bench/peers/torch_attention.py takes it.
std::string shape_text(const FlashShape& s) {
    return fmt::format("{}:{}:{}:{}:{}:{}:{}", s.batch, s.tokens, s.heads, s.kv_heads, s.head_dim,
                       s.causal ? "causal" : "full", dtype_name(s.dtype));
}

// What bench/peers/torch_attention.py says about the shapes, by shape_text().
std::map<std::string, Json> ask_torch(const std::vector<FlashShape>& shapes, bool backward) {
    namespace fs = std::filesystem;
    const char* python = std::getenv("MILLRACE_PYTHON");
    std::string script;
    for (const char* place : {"bench/peers", MR_SOURCE_PEERS}) {
        const fs::path path = fs::path(place) / "torch_attention.py";
        if (script.empty() && fs::exists(path)) script = path.string();
    }
    if (script.empty()) {
        throw Error::usage({.field = "--peer",
                            .value = "torch",
                            .problem = "bench/peers/torch_attention.py was not found",
                            .remedy = "run it from the source directory"});
    }
    std::string list;
    for (const FlashShape& s : shapes) list += (list.empty() ? "" : ",") + shape_text(s);
    const std::string command =
        fmt::format("'{}' '{}' --shapes '{}'{}", python ? python : "python3", script, list,
                    backward ? "" : " --no-backward");
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
    std::map<std::string, Json> found;
    std::string text;
    char piece[4096];
    while (pipe && std::fgets(piece, sizeof piece, pipe.get())) text += piece;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const Json line = Json::parse(text.substr(at, end - at), nullptr, false);
        if (line.is_object() && line.contains("shape")) found[line["shape"]] = line;
        at = end + 1;
    }
    if (found.empty()) {
        throw Error::input({.field = "--peer",
                            .value = "torch",
                            .problem = "'" + command + "' measured nothing",
                            .remedy = "install PyTorch, or name a python that has it in "
                                      "MILLRACE_PYTHON"});
    }
    return found;
}

// A time as TFLOP/s, or a dash.
std::string rate(double flops, double seconds) {
    return seconds > 0 ? fmt::format("{:.1f}", flops / seconds / 1e12) : "-";
}
std::string share(double flops, double seconds, double peak) {
    return seconds > 0 && peak > 0 ? fmt::format("{:.0f}%", 100 * flops / seconds / peak) : "-";
}

Json as_json(const FlashShape& s, const FlashMeasured& m, double matrix) {
    Json row{{"batch", s.batch},
             {"tokens", s.tokens},
             {"heads", s.heads},
             {"kv_heads", s.kv_heads},
             {"head_dim", s.head_dim},
             {"mask", s.causal ? "causal" : "full"},
             {"type", dtype_name(s.dtype)},
             {"forward_us", m.forward * 1e6},
             {"forward_tflop_s", s.forward_flops() / m.forward / 1e12},
             {"forward_percent_of_matrix_peak", 100 * s.forward_flops() / m.forward / matrix},
             {"tensor_bytes", m.tensors},
             {"extra_bytes", m.extra}};
    if (m.backward > 0) {
        row["backward_us"] = m.backward * 1e6;
        row["backward_tflop_s"] = s.backward_flops() / m.backward / 1e12;
        row["backward_percent_of_matrix_peak"] = 100 * s.backward_flops() / m.backward / matrix;
    }
    return row;
}

}  // namespace

std::string flash_table(const FlashTables& options, double matrix, Json& json) {
    std::vector<FlashShape> shapes;
    for (const auto& [dim, heads] : {std::pair{128, 16}, {64, 32}}) {
        for (const bool causal : {false, true}) {
            for (const int tokens : options.tokens) {
                const int batch = std::max(1, 16384 / std::max(1, tokens));
                shapes.push_back({batch, tokens, heads, heads, dim, causal, DType::bf16});
            }
        }
    }
    std::map<std::string, Json> peers;
    if (options.torch) peers = ask_torch(shapes, options.backward);
    std::string text = fmt::format(
        "plain tensors, bf16; matrix products reach {:.0f} TFLOP/s; TFLOP/s (share of that)\n"
        "  {:>5} {:>6} {:>7} {:>6} {:>7} {:>9} {:>13} {:>9} {:>13} {:>9}",
        matrix / 1e12, "batch", "tokens", "heads", "dim", "mask", "fwd us", "TFLOP/s", "bwd us",
        "TFLOP/s", "extra MB");
    if (options.torch) text += "   PyTorch fwd/bwd, ours is x as fast: cuDNN, FlashAttention-2";
    text += "\n";
    json["plain"] = Json::array();
    for (const FlashShape& s : shapes) {
        const FlashMeasured m = cuda::measure_flash(s, options.backward);
        Json row = as_json(s, m, matrix);
        const auto both = [&](double flops, double seconds) {
            return rate(flops, seconds) + " (" + share(flops, seconds, matrix) + ")";
        };
        text +=
            fmt::format("  {:>5} {:>6} {:>7} {:>6} {:>7} {:>9.1f} {:>13} {:>9} {:>13} {:>9.1f}",
                        s.batch, s.tokens, s.heads, s.head_dim, s.causal ? "causal" : "full",
                        m.forward * 1e6, both(s.forward_flops(), m.forward),
                        m.backward > 0 ? fmt::format("{:.1f}", m.backward * 1e6) : "-",
                        both(s.backward_flops(), m.backward), static_cast<double>(m.extra) / 1e6);
        if (const auto peer = peers.find(shape_text(s)); peer != peers.end()) {
            row["torch"] = peer->second;
            for (const char* name : {"cudnn", "flash"}) {
                const auto times = [&](const char* which, double mine) {
                    const Json& theirs = peer->second[name][which];
                    return theirs.is_number() && mine > 0
                               ? fmt::format("{:.2f}", theirs.get<double>() / mine)
                               : std::string("-");
                };
                text += fmt::format("   {} / {}", times("forward", m.forward),
                                    times("backward", m.backward));
            }
        }
        text += "\n";
        json["plain"].push_back(row);
    }
    return text;
}

std::string cs336_table(double matrix, Json& json) {
    std::string text = fmt::format(
        "one sequence, one head, causal, forward and backward; ms, and MB besides the tensors\n"
        "  {:>5} {:>4} {:>7} {:>10} {:>10} {:>9} {:>10} {:>12} {:>12} {:>10} {:>8}\n",
        "type", "dim", "tokens", "fwd", "bwd", "TFLOP/s", "MB", "unfused fwd", "unfused bwd", "MB",
        "x");
    json["cs336"] = Json::array();
    // What there is no memory (or no kernel) for is said, and the next cell measured.
    const auto tried = [](auto&& measure, std::string& why) {
        FlashMeasured m;
        try {
            m = measure();
        } catch (const Error&) {
            why = "no memory";
        } catch (const ContractError& error) {
            why = error.what();
        }
        return m;
    };
    for (const DType dtype : {DType::bf16, DType::f32}) {
        for (const int dim : {16, 32, 64, 128}) {
            for (int tokens = 128; tokens <= 65536; tokens *= 2) {
                const FlashShape s{1, tokens, 1, 1, dim, true, dtype};
                std::string why, why_unfused;
                FlashMeasured m = tried([&] { return cuda::measure_flash(s, true); }, why);
                if (!why.empty() && why != "no memory") {  // the forward alone
                    why.clear();
                    m = tried([&] { return cuda::measure_flash(s, false); }, why);
                }
                const FlashMeasured u =
                    tried([&] { return cuda::measure_unfused(s, true); }, why_unfused);
                Json row = why.empty() ? as_json(s, m, matrix) : Json{{"error", why}};
                if (why_unfused.empty()) {
                    row["unfused"] = {{"forward_us", u.forward * 1e6},
                                      {"backward_us", u.backward * 1e6},
                                      {"extra_bytes", u.extra}};
                } else {
                    row["unfused"] = {{"error", why_unfused}};
                }
                json["cs336"].push_back(row);
                const auto cell = [](double x, const std::string& problem) {
                    if (!problem.empty()) return std::string("no memory");
                    return x > 0 ? fmt::format("{:.3f}", x) : std::string("-");
                };
                const double flops =
                    s.forward_flops() + (m.backward > 0 ? s.backward_flops() : 0.0);
                const double all = m.forward + m.backward;
                const double unfused = u.forward + (m.backward > 0 ? u.backward : 0.0);
                text += fmt::format(
                    "  {:>5} {:>4} {:>7} {:>10} {:>10} {:>9} {:>10.2f} {:>12} {:>12} {:>10.2f} "
                    "{:>8}\n",
                    dtype_name(dtype), dim, tokens, cell(m.forward * 1e3, why),
                    cell(m.backward * 1e3, why), rate(flops, all),
                    static_cast<double>(m.extra) / 1e6, cell(u.forward * 1e3, why_unfused),
                    cell(u.backward * 1e3, why_unfused), static_cast<double>(u.extra) / 1e6,
                    why.empty() && why_unfused.empty() ? fmt::format("{:.1f}", unfused / all)
                                                       : "-");
            }
        }
    }
    return text;
}

}  // namespace mr::cli
