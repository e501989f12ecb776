// Attention on plain tensors: forward and backward, compared with PyTorch and with the unfused
// version.
#include "lab/attention/flash_command.h"

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/coprocess.h"
#include "cli/peer.h"
#include "core/cuda/device.h"
#include "core/error.h"
#include "lab/attention/flash_measure.h"
#include "lab/attention/flash_shapes.h"
#include "ops/attention/flash/flash_cuda.h"

namespace mr::cli {
namespace {

using cuda::FlashMeasured;
using cuda::FlashShape;

// Runs bench/peers/torch_attention.py, which measures alternately with this program: one round of
// the same shape per request.
class Torch {
  public:
    explicit Torch(bool backward) {
        command_ = fmt::format("exec {} --serve{}", peer_command("torch_attention.py"),
                               backward ? "" : " --no-backward");
        process_ = std::make_unique<Coprocess>(command_);
    }
    void begin(const FlashShape& shape) {
        const bool forward_alone = shape.head_dim > cuda::kFlashBackwardMaxDim;
        ask(shape_text(shape) + (forward_alone ? ":forward" : ""));
    }
    void round() { ask("round"); }
    Json end() { return ask("end"); }  // medians of the rounds

  private:
    // The answer is the next line that is a JSON object; libraries may print other lines.
    Json ask(const std::string& what) {
        process_->say(what);
        while (const std::optional<std::string> line = process_->hear()) {
            const std::optional<Json> answer = object_of_line(*line);
            if (answer && answer->contains("shape")) return *answer;
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

// Measures a shape, and PyTorch's figures for it if available, else null: in alternate rounds, so
// that the device is in the same state for both.
FlashMeasured measured(const FlashShape& shape, const FlashTables& options, bool together,
                       Torch* torch, Json& peer) {
    if (!torch) return cuda::measure_flash(shape, options.backward, together);
    torch->begin(shape);
    const FlashMeasured m =
        cuda::measure_flash(shape, options.backward, together, [torch] { torch->round(); });
    peer = torch->end();
    return m;
}

// The shape of published figures: a step's attention, forward and backward together.
const FlashShape kBoard{1, 16384, 16, 16, 64, {ops::AttentionMask::Kind::causal}, DType::bf16};

// A time as TFLOP/s, or a dash.
std::string rate(double flops, double seconds) {
    return seconds > 0 ? fmt::format("{:.1f}", flops / seconds / 1e12) : "-";
}
std::string share(double flops, double seconds, double peak) {
    return seconds > 0 && peak > 0 ? fmt::format("{:.0f}%", 100 * flops / seconds / peak) : "-";
}

Json shape_json(const FlashShape& s) {
    Json row{{"batch", s.sequences()},     {"tokens", s.longest()},  {"heads", s.heads},
             {"kv_heads", s.kv_heads},     {"head_dim", s.head_dim}, {"mask", mask_text(s.mask)},
             {"type", dtype_name(s.dtype)}};
    if (!s.lengths.empty()) row["lengths"] = s.lengths;
    return row;
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

// The figure for that shape.
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

void check_shapes(const FlashTables& options) {
    for (const std::string& text : options.shapes) flash_shape(text);
}

namespace {

std::vector<FlashShape> shapes_of(const FlashTables& options) {
    std::vector<FlashShape> shapes;
    for (const std::string& text : options.shapes) shapes.push_back(flash_shape(text));
    if (!shapes.empty()) return shapes;
    if (options.list != "wide") shapes = target_shapes(options.tokens);
    if (options.list != "targets") {
        for (FlashShape& shape : wide_shapes()) shapes.push_back(std::move(shape));
    }
    return shapes;
}

// Speedup over both of PyTorch's versions, forward and backward.
std::string times_text(Json peer, const FlashMeasured& m) {
    std::string text;
    for (const char* name : {"cudnn", "flash"}) {
        const auto times = [&](const char* which, double mine) {
            const Json& theirs = peer[name][which];
            return theirs.is_number() && mine > 0
                       ? fmt::format("{:.2f}", theirs.get<double>() / mine)
                       : std::string("-");
        };
        text += fmt::format("   {:>4} / {:<4}", times("forward", m.forward),
                            times("backward", m.backward));
    }
    return text;
}

std::string row_text(const FlashShape& s, const FlashMeasured& m, double matrix) {
    const auto both = [&](double flops, double seconds) {
        return rate(flops, seconds) + " (" + share(flops, seconds, matrix) + ")";
    };
    const bool packed = !s.lengths.empty(), groups = s.heads != s.kv_heads;
    return fmt::format(
        "  {:>5} {:>6} {:>6} {:>4} {:>16} {:>5} {:>8.1f} {:>12} {:>8} {:>12} {:>8.1f}",
        s.sequences(), (packed ? "<" : "") + std::to_string(s.longest()),
        groups ? fmt::format("{}/{}", s.heads, s.kv_heads) : std::to_string(s.heads), s.head_dim,
        mask_text(s.mask), dtype_name(s.dtype), m.forward * 1e6, both(s.forward_flops(), m.forward),
        m.backward > 0 ? fmt::format("{:.1f}", m.backward * 1e6) : "-",
        m.backward > 0 ? both(s.backward_flops(), m.backward) : "-",
        static_cast<double>(m.extra) / 1e6);
}

}  // namespace

void flash_table(const FlashTables& options, double matrix, Json& json, const Say& say) {
    const std::vector<FlashShape> shapes = shapes_of(options);
    std::optional<Torch> torch;
    if (options.torch) torch.emplace(options.backward);
    Torch* const turns = torch ? &*torch : nullptr;
    say(
        fmt::format("plain tensors; matrix products reach {:.0f} TFLOP/s; TFLOP/s (share of that)\n"
                    "  {:>5} {:>6} {:>6} {:>4} {:>16} {:>5} {:>8} {:>12} {:>8} {:>12} {:>8}{}\n",
                    matrix / 1e12, "batch", "tokens", "heads", "dim", "mask", "type", "fwd us",
                    "TFLOP/s", "bwd us", "TFLOP/s", "extra MB",
                    options.torch ? "   x as fast as cuDNN, FlashAttention-2, fwd / bwd" : ""));
    json["plain"] = Json::array();
    for (const FlashShape& s : shapes) {
        Json peer;
        const FlashMeasured m = measured(s, options, false, turns, peer);
        Json row = as_json(s, m, matrix);
        std::string text = row_text(s, m, matrix);
        if (!peer.is_null()) {
            row["torch"] = peer;
            text += times_text(peer, m);
        }
        say(text + "\n");
        json["plain"].push_back(row);
    }
    const bool targets = options.shapes.empty() && options.list != "wide";
    if (targets && options.tokens.empty() && options.backward) {
        say(board_line(options, turns, matrix, json));
    }
}

namespace {

constexpr const char* kNoMemory = "no memory";

// A cell of the grid: fused beside unfused; none: out of memory.
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

void cs336_table(const FlashTables& options, double matrix, Json& json, const Say& say) {
    say(fmt::format(
        "one sequence, one head, causal, {}; ms, and MB besides the tensors\n"
        "of peak: matrix products reach {:.0f} TFLOP/s\n"
        "  {:>5} {:>4} {:>7} {:>10} {:>10} {:>9} {:>7} {:>10} {:>12} {:>12} {:>10} {:>8}\n",
        options.backward ? "forward and backward" : "forward", matrix / 1e12, "type", "dim",
        "tokens", "fwd", "bwd", "TFLOP/s", "of peak", "MB", "unfused fwd", "unfused bwd", "MB",
        "x"));
    json["cs336"] = Json::array();
    // A cell that does not fit into memory is reported, and the next one measured. Every other
    // error is thrown.
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
                const FlashShape s{1, tokens, 1, 1, dim, {ops::AttentionMask::Kind::causal}, dtype};
                const auto m = tried([&] { return cuda::measure_flash(s, options.backward); });
                const auto u = tried([&] { return cuda::measure_unfused(s, options.backward); });
                json["cs336"].push_back(cell_json(s, m, u, matrix));
                say(cell_text(s, m, u, matrix));
            }
        }
    }
}

}  // namespace mr::cli
