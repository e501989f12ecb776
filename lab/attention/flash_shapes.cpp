#include "lab/attention/flash_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace mr::cli {
namespace {

using cuda::FlashShape;
using Kind = ops::AttentionMask::Kind;

[[noreturn]] void refuse(std::string_view text, std::string problem) {
    throw Error::usage({.field = "--shape",
                        .value = std::string(text),
                        .problem = std::move(problem),
                        .remedy = "BATCH:TOKENS:HEADS:KV_HEADS:HEAD_DIM:MASK[:TYPE], for example "
                                  "8:2048:32:8:128:causal:bf16"});
}

std::vector<std::string_view> split(std::string_view text, char at) {
    std::vector<std::string_view> parts;
    for (;;) {
        const std::size_t end = std::min(text.find(at), text.size());
        parts.push_back(text.substr(0, end));
        if (end == text.size()) return parts;
        text.remove_prefix(end + 1);
    }
}

// A whole number in [1, most].
int number(std::string_view shape, std::string_view text, const char* what, int most) {
    int n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc() || end != text.data() + text.size() || n < 1 || n > most) {
        refuse(shape,
               fmt::format("has {} '{}', which is not a number from 1 to {}", what, text, most));
    }
    return n;
}

ops::AttentionMask mask_from(std::string_view shape, std::string_view text) {
    constexpr int kMost = 1 << 20;
    const std::vector<std::string_view> parts = split(text, '/');
    if (text == "full") return {Kind::full};
    if (text == "causal") return {Kind::causal};
    if (parts[0] == "block-causal" && parts.size() == 2) {
        return {Kind::block_causal, number(shape, parts[1], "the block", kMost)};
    }
    if (parts[0] == "window" && (parts.size() == 2 || parts.size() == 3)) {
        const int window = number(shape, parts[1], "the window", kMost);
        return {Kind::causal, 1, window,
                parts.size() == 3 ? number(shape, parts[2], "sinks", kMost) : 0};
    }
    refuse(shape, fmt::format("has the mask '{}', which is not one of full, causal, "
                              "block-causal/BLOCK, window/WINDOW and window/WINDOW/SINKS",
                              text));
}

}  // namespace

FlashShape flash_shape(std::string_view text) {
    constexpr int kTokens = 1 << 20;
    const std::vector<std::string_view> parts = split(text, ':');
    if (parts.size() != 6 && parts.size() != 7) {
        refuse(text, fmt::format("has {} parts instead of 6 or 7", parts.size()));
    }
    FlashShape shape;
    shape.batch = number(text, parts[0], "the batch", 1 << 16);
    const std::vector<std::string_view> lengths = split(parts[1], '+');
    if (lengths.size() == 1) {
        shape.tokens = number(text, parts[1], "tokens", kTokens);
    } else {
        if (shape.batch != 1) refuse(text, "is packed, so its batch has to be 1");
        for (const std::string_view length : lengths) {
            shape.lengths.push_back(number(text, length, "a length", kTokens));
        }
    }
    if (shape.all_tokens() > (1 << 24)) refuse(text, "has more than 16,777,216 tokens");
    shape.heads = number(text, parts[2], "heads", 1024);
    shape.kv_heads = number(text, parts[3], "kv heads", 1024);
    shape.head_dim = number(text, parts[4], "a head size", 256);
    if (shape.heads % shape.kv_heads != 0)
        refuse(text, "has kv heads that do not divide its heads");
    if (shape.head_dim % 8 != 0) refuse(text, "has a head size that is not a multiple of 8");
    shape.mask = mask_from(text, parts[5]);
    if (parts.size() == 7) {
        const std::optional<DType> type = dtype_from_name(parts[6]);
        if (type != DType::bf16 && type != DType::f16 && type != DType::f32) {
            refuse(text, fmt::format("has the type '{}', but must be bf16, f16 or f32", parts[6]));
        }
        shape.dtype = *type;
    }
    return shape;
}

std::string mask_text(const ops::AttentionMask& mask) {
    if (mask.window > 0) {
        return fmt::format("window/{}", mask.window) +
               (mask.sinks > 0 ? fmt::format("/{}", mask.sinks) : "");
    }
    if (mask.kind == Kind::block_causal) return fmt::format("block-causal/{}", mask.block);
    return mask.kind == Kind::causal ? "causal" : "full";
}

std::string tokens_text(const FlashShape& shape) {
    return shape.lengths.empty() ? std::to_string(shape.tokens)
                                 : fmt::format("{}", fmt::join(shape.lengths, "+"));
}

std::string shape_text(const FlashShape& s) {
    return fmt::format("{}:{}:{}:{}:{}:{}:{}", s.lengths.empty() ? s.batch : 1, tokens_text(s),
                       s.heads, s.kv_heads, s.head_dim, mask_text(s.mask), dtype_name(s.dtype));
}

std::vector<FlashShape> target_shapes(std::vector<int> lengths) {
    if (lengths.empty()) lengths = {512, 2048, 8192, 16384};
    std::vector<FlashShape> shapes;
    for (const auto& [dim, heads] : {std::pair{128, 16}, {64, 32}}) {
        for (const Kind kind : {Kind::full, Kind::causal}) {
            for (const int tokens : lengths) {
                const int batch = std::max(1, 16384 / std::max(1, tokens));
                shapes.push_back({batch, tokens, heads, heads, dim, {kind}, DType::bf16});
            }
        }
    }
    return shapes;
}

std::vector<FlashShape> wide_shapes() {
    // Lengths of documents, as in a corpus: 23 that add up to 16,384.
    const std::string packed =
        "1:3012+205+871+1490+64+333+702+2048+129+512+418+1777+96+640+255+1023+37+580+911+301+150+"
        "770+60:";
    // clang-format off
    const std::string texts[] = {
        // Phi-2 and Pythia; Phi-3; Gemma, forward only.
        "32:512:32:32:80:causal", "8:2048:32:32:80:causal", "2:8192:32:32:80:causal",
        "32:512:32:32:96:causal", "8:2048:32:32:96:causal", "2:8192:32:32:96:causal",
        "32:512:16:16:256:causal", "8:2048:16:16:256:causal", "2:8192:16:16:256:causal",
        "8:2048:16:16:256:full",
        // Grouped heads: Llama 3, its smallest, one kv head.
        "32:512:32:8:128:causal", "8:2048:32:8:128:causal", "2:8192:32:8:128:causal",
        "32:512:32:8:64:causal",
        "32:512:32:1:128:causal", "8:2048:32:1:128:causal",
        // Packed.
        packed + "16:16:128:causal", packed + "32:32:64:causal", packed + "32:8:128:causal",
        packed + "32:32:64:full",
        // f16.
        "8:2048:16:16:128:causal:f16", "2:8192:16:16:128:full:f16", "32:512:32:32:64:causal:f16",
        // GPT-2.
        "32:1024:12:12:64:causal",
        // Other masks.
        "2:8192:16:16:128:window/1024", "2:8192:32:32:64:window/1024",
        "2:8192:16:16:128:window/1024/4", "2:8192:16:16:128:block-causal/32",
        "8:2048:32:32:64:block-causal/32"};
    // clang-format on
    std::vector<FlashShape> shapes;
    for (const std::string& text : texts) shapes.push_back(flash_shape(text));
    return shapes;
}

}  // namespace mr::cli
