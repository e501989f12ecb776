// Attention on plain tensors: forward and backward, beside PyTorch, and against the unfused
// version.
#include "cli/bench_flash.h"

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/coprocess.h"
#include "cli/peer.h"
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

// bench/peers/torch_attention.py, which measures in turns with this program: a round of the same
// shape whenever it is asked.
class Torch {
  public:
    explicit Torch(bool backward) {
        command_ = fmt::format("exec {} --serve{}", peer_command("torch_attention.py"),
                               backward ? "" : " --no-backward");
        process_ = std::make_unique<Coprocess>(command_);
    }
    void begin(const FlashShape& shape) { ask(shape_text(shape)); }
    void round() { ask("round"); }
    Json end() { return ask("end"); }  // medians of the rounds

  private:
    // The next line that is an object is the answer; libraries may say other things.
    Json ask(const std::string& what) {
        process_->say(what);
        while (const std::optional<std::string> line = process_->hear()) {
            const Json answer = Json::parse(*line, nullptr, false);
            if (answer.is_object() && answer.contains("shape")) return answer;
        }
        throw Error::input({.field = "--peer",
                            .value = "torch",
                            .problem = "'" + command_ + "' ended without an answer",
                            .remedy = "install PyTorch, or name a python that has it in "
                                      "MILLRACE_PYTHON"});
    }
    std::string command_;
    std::unique_ptr<Coprocess> process_;
};

// A shape, and PyTorch's figures for it where it is there, else null: both measured in turns, in as
// equal states of the device as can be had.
FlashMeasured measured(const FlashShape& shape, const FlashTables& options, bool together,
                       Torch* torch, Json& peer) {
    if (!torch) return cuda::measure_flash(shape, options.backward, together);
    torch->begin(shape);
    const FlashMeasured m =
        cuda::measure_flash(shape, options.backward, together, [torch] { torch->round(); });
    peer = torch->end();
    return m;
}

// What others publish figures of: a step's attention, forward and backward together.
const FlashShape kBoard{1, 16384, 16, 16, 64, true, DType::bf16};

// A time as TFLOP/s, or a dash.
std::string rate(double flops, double seconds) {
    return seconds > 0 ? fmt::format("{:.1f}", flops / seconds / 1e12) : "-";
}
std::string share(double flops, double seconds, double peak) {
    return seconds > 0 && peak > 0 ? fmt::format("{:.0f}%", 100 * flops / seconds / peak) : "-";
}

Json shape_json(const FlashShape& s) {
    return {{"batch", s.batch},           {"tokens", s.tokens},
            {"heads", s.heads},           {"kv_heads", s.kv_heads},
            {"head_dim", s.head_dim},     {"mask", s.causal ? "causal" : "full"},
            {"type", dtype_name(s.dtype)}};
}

Json as_json(const FlashShape& s, const FlashMeasured& m, double matrix) {
    Json row = shape_json(s);
    row["forward_us"] = m.forward * 1e6;
    row["forward_tflop_s"] = s.forward_flops() / m.forward / 1e12;
    row["forward_percent_of_matrix_peak"] = 100 * s.forward_flops() / m.forward / matrix;
    row["tensor_bytes"] = m.tensors;
    row["extra_bytes"] = m.extra;
    if (m.backward > 0) {
        row["backward_us"] = m.backward * 1e6;
        row["backward_tflop_s"] = s.backward_flops() / m.backward / 1e12;
        row["backward_percent_of_matrix_peak"] = 100 * s.backward_flops() / m.backward / matrix;
    }
    return row;
}

// The board's shape, one figure.
std::string board_line(const FlashTables& options, Torch* torch, double matrix, Json& json) {
    Json peer;
    const FlashMeasured m = measured(kBoard, options, true, torch, peer);
    Json row = as_json(kBoard, m, matrix);
    row["together_us"] = m.together * 1e6;
    std::string text =
        fmt::format("{} heads of {}, {} causal tokens, forward and backward together: {:.3f} ms",
                    kBoard.heads, kBoard.head_dim, kBoard.tokens, m.together * 1e3);
    if (!peer.is_null()) {
        row["torch"] = peer;
        for (const auto& [key, name] :
             {std::pair{"cudnn", "cuDNN"}, {"flash", "FlashAttention-2"}}) {
            const Json &forward = peer[key]["forward"], &backward = peer[key]["backward"];
            if (!forward.is_number() || !backward.is_number()) continue;
            text += fmt::format("; {} {:.3f} + {:.3f}", name, forward.get<double>() * 1e3,
                                backward.get<double>() * 1e3);
        }
    }
    json["board"] = row;
    return text + "\n";
}

}  // namespace

std::string flash_table(const FlashTables& options, double matrix, Json& json) {
    std::vector<int> lengths = options.tokens;
    if (lengths.empty()) lengths = {512, 2048, 8192, 16384};
    std::vector<FlashShape> shapes;
    for (const auto& [dim, heads] : {std::pair{128, 16}, {64, 32}}) {
        for (const bool causal : {false, true}) {
            for (const int tokens : lengths) {
                const int batch = std::max(1, 16384 / std::max(1, tokens));
                shapes.push_back({batch, tokens, heads, heads, dim, causal, DType::bf16});
            }
        }
    }
    std::optional<Torch> torch;
    if (options.torch) torch.emplace(options.backward);
    Torch* const turns = torch ? &*torch : nullptr;
    std::string text = fmt::format(
        "plain tensors, bf16; matrix products reach {:.0f} TFLOP/s; TFLOP/s (share of that)\n"
        "  {:>5} {:>6} {:>7} {:>6} {:>7} {:>9} {:>13} {:>9} {:>13} {:>9}",
        matrix / 1e12, "batch", "tokens", "heads", "dim", "mask", "fwd us", "TFLOP/s", "bwd us",
        "TFLOP/s", "extra MB");
    if (options.torch) text += "   PyTorch fwd/bwd, ours is x as fast: cuDNN, FlashAttention-2";
    text += "\n";
    json["plain"] = Json::array();
    for (const FlashShape& s : shapes) {
        Json peer;
        const FlashMeasured m = measured(s, options, false, turns, peer);
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
        if (!peer.is_null()) {
            row["torch"] = peer;
            for (const char* name : {"cudnn", "flash"}) {
                const auto times = [&](const char* which, double mine) {
                    const Json& theirs = peer[name][which];
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
    if (options.tokens.empty() && options.backward) {
        text += board_line(options, turns, matrix, json);
    }
    return text;
}

namespace {

constexpr const char* kNoMemory = "no memory";

// A cell of the grid: fused beside unfused; none: there was no memory for it.
Json cell_json(const FlashShape& s, const std::optional<FlashMeasured>& m,
               const std::optional<FlashMeasured>& u, double matrix) {
    Json row = m ? as_json(s, *m, matrix) : shape_json(s);
    if (!m) row["error"] = kNoMemory;
    if (u) {
        row["unfused"] = {{"forward_us", u->forward * 1e6}, {"extra_bytes", u->extra}};
        if (u->backward > 0) row["unfused"]["backward_us"] = u->backward * 1e6;
    } else {
        row["unfused"] = {{"error", kNoMemory}};
    }
    return row;
}

std::string cell_text(const FlashShape& s, const std::optional<FlashMeasured>& m,
                      const std::optional<FlashMeasured>& u, double matrix) {
    const auto ms = [](const std::optional<FlashMeasured>& x, double FlashMeasured::*time) {
        if (!x) return std::string(kNoMemory);
        return (*x).*time > 0 ? fmt::format("{:.3f}", (*x).*time * 1e3) : std::string("-");
    };
    const auto mb = [](const std::optional<FlashMeasured>& x) {
        return x ? fmt::format("{:.2f}", static_cast<double>(x->extra) / 1e6) : std::string("-");
    };
    std::string speed = "-", of_peak = "-", times = "-";
    if (m) {
        const bool both = m->backward > 0;
        const double flops = s.forward_flops() + (both ? s.backward_flops() : 0.0);
        speed = rate(flops, m->forward + m->backward);
        of_peak = share(flops, m->forward + m->backward, matrix);
        if (u) {
            const double unfused = u->forward + (both ? u->backward : 0.0);
            times = fmt::format("{:.1f}", unfused / (m->forward + m->backward));
        }
    }
    return fmt::format(
        "  {:>5} {:>4} {:>7} {:>10} {:>10} {:>9} {:>7} {:>10} {:>12} {:>12} {:>10} {:>8}\n",
        dtype_name(s.dtype), s.head_dim, s.tokens, ms(m, &FlashMeasured::forward),
        ms(m, &FlashMeasured::backward), speed, of_peak, mb(m), ms(u, &FlashMeasured::forward),
        ms(u, &FlashMeasured::backward), mb(u), times);
}

}  // namespace

std::string cs336_table(const FlashTables& options, double matrix, Json& json) {
    std::string text = fmt::format(
        "one sequence, one head, causal, {}; ms, and MB besides the tensors\n"
        "of peak: matrix products reach {:.0f} TFLOP/s\n"
        "  {:>5} {:>4} {:>7} {:>10} {:>10} {:>9} {:>7} {:>10} {:>12} {:>12} {:>10} {:>8}\n",
        options.backward ? "forward and backward" : "forward", matrix / 1e12, "type", "dim",
        "tokens", "fwd", "bwd", "TFLOP/s", "of peak", "MB", "unfused fwd", "unfused bwd", "MB",
        "x");
    json["cs336"] = Json::array();
    // What there is no memory for is said, and the next cell measured. Every other error is one.
    const auto tried = [](auto&& measure) -> std::optional<FlashMeasured> {
        try {
            return measure();
        } catch (const cuda::OutOfMemory&) {
            return std::nullopt;
        }
    };
    std::vector<int> lengths = options.tokens;
    for (int tokens = 128; options.tokens.empty() && tokens <= 65536; tokens *= 2) {
        lengths.push_back(tokens);
    }
    std::vector<DType> types{DType::bf16, DType::f32};
    if (options.type) types = {*options.type};
    for (const DType dtype : types) {
        for (const int dim : {16, 32, 64, 128}) {
            for (const int tokens : lengths) {
                const FlashShape s{1, tokens, 1, 1, dim, true, dtype};
                const auto m = tried([&] { return cuda::measure_flash(s, options.backward); });
                const auto u = tried([&] { return cuda::measure_unfused(s, options.backward); });
                json["cs336"].push_back(cell_json(s, m, u, matrix));
                text += cell_text(s, m, u, matrix);
            }
        }
    }
    return text;
}

}  // namespace mr::cli
