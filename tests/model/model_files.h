// Files for the tests of loading and converting.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "formats/gguf_writer.h"
#include "model/model.h"
#include "model/names.h"
#include "ops/quant/quant.h"
#include "temp_folder.h"

namespace mr::model {

namespace fs = std::filesystem;

inline std::string reference(const std::string& name) {
    return std::string(MR_SOURCE_DIR "/tests/reference/") + name;
}

inline std::string data_folder() {
    const char* given = std::getenv("MILLRACE_DATA");
    return given ? given : MR_TEST_DATA;
}

using test::TempFolder;

inline std::string error_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.what();
    }
    return "no error";
}

// Checks that every tensor of the spec is there, in its shape.
inline void expect_shapes_match(const Model& model) {
    for (RoleAt at : roles_of(model.spec)) {
        const Tensor& tensor = role_slot(model.weights, at);
        ASSERT_TRUE(tensor) << static_cast<int>(at.role);
        EXPECT_EQ(tensor.shape, role_shape(model.spec, at.role)) << static_cast<int>(at.role);
        if (!is_matrix(at.role)) {
            EXPECT_EQ(tensor.dtype, DType::f32);
        }
    }
    ASSERT_TRUE(model.weights.head);
    EXPECT_EQ(model.weights.head.data == model.weights.embedding.data, model.spec.tied_embeddings);
}
// A GGUF of a tiny llama; a test may change keys and tensors before it is written.
struct TinyGguf {
    std::map<std::string, std::function<void(formats::GgufWriter&, const std::string&)>> keys;
    std::map<std::string, std::pair<DType, Shape>> tensors;

    static auto u32(std::uint32_t value) {
        return [value](formats::GgufWriter& w, const std::string& key) { w.set_u32(key, value); };
    }
    static auto f32(float value) {
        return [value](formats::GgufWriter& w, const std::string& key) { w.set_f32(key, value); };
    }
    static auto text(std::string value) {
        return
            [value](formats::GgufWriter& w, const std::string& key) { w.set_string(key, value); };
    }

    explicit TinyGguf(int dim = 256) {
        keys["general.architecture"] = text("llama");
        keys["llama.embedding_length"] = u32(static_cast<std::uint32_t>(dim));
        keys["llama.block_count"] = u32(1);
        keys["llama.attention.head_count"] = u32(4);
        keys["llama.attention.head_count_kv"] = u32(2);
        keys["llama.feed_forward_length"] = u32(256);
        keys["llama.context_length"] = u32(128);
        keys["llama.attention.layer_norm_rms_epsilon"] = f32(1e-5f);
        const std::int64_t d = dim;
        tensors["token_embd.weight"] = {DType::f32, {40, d}};
        tensors["output_norm.weight"] = {DType::f32, {d}};
        tensors["blk.0.attn_norm.weight"] = {DType::f32, {d}};
        tensors["blk.0.ffn_norm.weight"] = {DType::f32, {d}};
        tensors["blk.0.attn_q.weight"] = {DType::f32, {d, d}};
        tensors["blk.0.attn_k.weight"] = {DType::f32, {d / 2, d}};
        tensors["blk.0.attn_v.weight"] = {DType::f32, {d / 2, d}};
        tensors["blk.0.attn_output.weight"] = {DType::f32, {d, d}};
        tensors["blk.0.ffn_gate.weight"] = {DType::f32, {256, d}};
        tensors["blk.0.ffn_up.weight"] = {DType::f32, {256, d}};
        tensors["blk.0.ffn_down.weight"] = {DType::f32, {d, 256}};
    }

    void write(const std::string& path) const {
        formats::GgufWriter writer(path);
        for (const auto& [key, set] : keys) set(writer, key);
        for (const auto& [name, tensor] : tensors) {
            writer.declare(name, tensor.first, tensor.second);
        }
        for (const auto& [name, tensor] : tensors) {
            const auto count = static_cast<std::size_t>(tensor.second.count());
            std::vector<std::uint8_t> bytes(dtype_bytes(tensor.first, count));
            if (is_quantised(tensor.first)) {
                // Any small bytes are valid blocks; the scales among them are subnormal halves.
                for (std::size_t i = 0; i < bytes.size(); ++i) {
                    bytes[i] = static_cast<std::uint8_t>((i * 7) % 3);
                }
            } else {
                std::vector<float> values(count);
                for (std::size_t i = 0; i < count; ++i) {
                    values[i] = static_cast<float>(i % 13) - 6.0f;
                }
                ops::quantize(tensor.first, values.data(), bytes.data(),
                              static_cast<std::int64_t>(count));
            }
            writer.write(bytes.data(), bytes.size());
        }
        writer.finish();
    }
};

}  // namespace mr::model
