// Layout and size of weights on a device, and how rows get there: needs no GPU.
#include "model/cuda/device_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "model/cuda/device_reader.h"
#include "model/cuda/device_weights.h"
#include "model/io/convert.h"
#include "model/io/random.h"
#include "support.h"
#include "temp_folder.h"

namespace mr::model {
namespace {

ModelSpec small() {
    ModelSpec spec;
    spec.family = "llama";
    spec.vocab = 96;
    spec.dim = 64;
    spec.hidden = 160;
    spec.layers = 2;
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.head_dim = spec.rope.rotary = 16;
    spec.context = 64;
    return spec;
}

// 160 is 5 blocks: 3 granules of 64, 2 of 128. Everything else is a whole number; by the definition
// in ops/linear/tile_layout.h.
std::uint64_t by_hand(const ModelSpec& spec, DType type) {
    const auto matrix = [&](std::uint64_t rows, std::uint64_t cols) -> std::uint64_t {
        const std::uint64_t tiles = (rows + 7) / 8;
        if (type == DType::q8_0) return tiles * ((cols + 63) / 64) * (512 + 32);
        if (type == DType::q4_0) return tiles * ((cols + 127) / 128) * (512 + 64);
        return rows * cols * (type == DType::f32 ? 4 : 2);
    };
    const auto up = [](std::uint64_t bytes) { return (bytes + 255) / 256 * 256; };
    const std::uint64_t norm = up(64 * 4);
    const std::uint64_t layer = 2 * norm + up(matrix(64 + 32 + 32, 64)) + up(matrix(64, 64)) +
                                up(matrix(2 * 160, 64)) + up(matrix(64, 160));
    const std::uint64_t tables = spec.tied_embeddings ? 1 : 2;
    return tables * up(matrix(96, 64)) + 2 * layer + norm;
}

TEST(DeviceLayout, TakesWhatArithmeticSays) {
    for (DType type : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0}) {
        for (bool tied : {false, true}) {
            ModelSpec spec = small();
            spec.tied_embeddings = tied;
            const std::uint64_t expected = by_hand(spec, type);
            EXPECT_EQ(device_weight_bytes(spec, type), expected) << dtype_name(type);
            EXPECT_EQ(device_weight_bytes(random_model(spec, type, 1)), expected);
            EXPECT_EQ(device_weight_bytes(deferred_random_model(spec, type, 1)), expected);
        }
    }
}

struct Range {
    std::uintptr_t begin, end;
};
Range range_of(const Tensor& t) {
    const auto begin = reinterpret_cast<std::uintptr_t>(t.data);
    return {begin, begin + (t.shape.rank == 1 ? t.bytes()
                                              : device_matrix_bytes(t.dtype, t.dim(0), t.dim(1)))};
}

void expect_sound(const ModelSpec& spec, const DTypeOf& types) {
    constexpr std::uintptr_t kBase = 1 << 20;
    const DeviceViews views = device_views(spec, types, kBase);
    std::vector<Range> ranges;
    for (RoleAt at : roles_of(spec)) {
        const Tensor& tensor = role_slot(views.weights, at);
        EXPECT_EQ(tensor.shape, role_shape(spec, at.role));
        EXPECT_EQ(tensor.dtype, is_matrix(at.role) ? device_type(types(at)) : DType::f32);
        const Range range = range_of(tensor);
        EXPECT_GE(range.begin, kBase + (is_matrix(at.role) ? views.vector_bytes : 0));
        EXPECT_LE(range.end, kBase + (is_matrix(at.role) ? views.bytes : views.vector_bytes));
        EXPECT_EQ(range.begin % (is_matrix(at.role) ? 16 : 4), 0u);
        ranges.push_back(range);
    }
    std::sort(ranges.begin(), ranges.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < ranges.size(); ++i) {
        EXPECT_LE(ranges[i - 1].end, ranges[i].begin) << "two tensors overlap";
    }
    EXPECT_EQ(views.bytes % 256, 0u);
    EXPECT_EQ(views.weights.head.data == views.weights.embedding.data, spec.tied_embeddings);
    for (std::size_t i = 0; i < views.layers.size(); ++i) {
        const LayerWeights& w = views.weights.layers[i];
        const DeviceLayer& joined = views.layers[i];
        for (const Tensor* t : {&joined.qkv, &joined.gate_up}) {
            if (*t) {
                EXPECT_EQ(range_of(*t).begin % 256, 0u);
            }
        }
        if (joined.qkv) {
            EXPECT_EQ(joined.qkv.shape, (Shape{spec.q_dim() + 2 * spec.kv_dim(), spec.dim}));
            EXPECT_EQ(range_of(joined.qkv).begin, range_of(w.q).begin);
            EXPECT_EQ(range_of(w.q).end, range_of(w.k).begin);
            EXPECT_EQ(range_of(w.k).end, range_of(w.v).begin);
            EXPECT_EQ(range_of(joined.qkv).end, range_of(w.v).end);
        }
        if (joined.gate_up) {
            EXPECT_EQ(joined.gate_up.shape, (Shape{2 * spec.hidden, spec.dim}));
            EXPECT_EQ(range_of(joined.gate_up).begin, range_of(w.gate).begin);
            EXPECT_EQ(range_of(w.gate).end, range_of(w.up).begin);
            EXPECT_EQ(range_of(joined.gate_up).end, range_of(w.up).end);
        }
        EXPECT_EQ(static_cast<bool>(joined.qkv_bias), spec.qkv_bias);
        if (joined.qkv_bias) {
            EXPECT_EQ(joined.qkv_bias.dim(0), spec.q_dim() + 2 * spec.kv_dim());
            EXPECT_EQ(range_of(joined.qkv_bias).begin, range_of(w.q_bias).begin);
            EXPECT_EQ(range_of(w.q_bias).end, range_of(w.k_bias).begin);
            EXPECT_EQ(range_of(w.k_bias).end, range_of(w.v_bias).begin);
        }
    }
}

TEST(DeviceLayout, TensorsAreApartAndJoinedOnesTogether) {
    for (DType type : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0}) {
        for (int variant = 0; variant < 5; ++variant) {
            ModelSpec spec = small();
            if (variant == 1) spec.qkv_bias = spec.out_bias = true;
            if (variant == 2) spec.gated = false, spec.mlp_bias = true, spec.norm = NormKind::layer;
            if (variant == 3) spec.tied_embeddings = spec.qk_norm = true;
            if (variant == 4) spec.hidden = 172;  // no whole blocks or tiles
            const Model model = deferred_random_model(spec, type, 3);
            expect_sound(spec, types_of(model));
            const DeviceViews views = device_views(spec, types_of(model), 4096);
            EXPECT_TRUE(views.layers[0].qkv);
            const bool tiles = type == DType::q8_0 || type == DType::q4_0;
            EXPECT_EQ(static_cast<bool>(views.layers[0].gate_up),
                      spec.gated && !(tiles && spec.hidden % 8))
                << dtype_name(type) << " " << variant;
        }
    }
}

TEST(DeviceLayout, PartsOfDifferentTypesStayApart) {
    const ModelSpec spec = small();
    const DTypeOf types = [](RoleAt at) {
        if (!is_matrix(at.role)) return DType::f32;
        if (at.role == Role::v && at.layer == 1) return DType::q8_0;
        if (at.role == Role::up) return DType::f16;
        if (at.role == Role::embedding) return DType::bf16;
        return DType::q4_0;
    };
    expect_sound(spec, types);
    const DeviceViews views = device_views(spec, types, 4096);
    EXPECT_TRUE(views.layers[0].qkv);
    EXPECT_FALSE(views.layers[1].qkv);
    EXPECT_FALSE(views.layers[0].gate_up);
    EXPECT_EQ(views.weights.layers[1].v.dtype, DType::q8_0x8);
    EXPECT_EQ(views.weights.layers[1].q.dtype, DType::q4_0x8);
}

TEST(DeviceLayout, HalvesBecomeNeighbours) {
    ModelSpec spec = small();
    spec.rope.rotary = 6;  // of 16
    for (Role role : {Role::q, Role::k, Role::q_bias, Role::k_bias, Role::q_norm, Role::k_norm}) {
        spec.rope.style = ops::RopeStyle::half;
        const RowOrder order = row_order(spec, role);
        for (std::int64_t head = 0; head < 4; ++head) {
            for (std::int64_t i = 0; i < 3; ++i) {
                EXPECT_EQ(order.source(head * 16 + 2 * i), head * 16 + i);
                EXPECT_EQ(order.source(head * 16 + 2 * i + 1), head * 16 + i + 3);
            }
            for (std::int64_t i = 6; i < 16; ++i) {
                EXPECT_EQ(order.source(head * 16 + i), head * 16 + i);
            }
        }
        for (std::int64_t r = 0; r < 64; ++r) {
            EXPECT_EQ(order.inverse(order.source(r)), r);
            EXPECT_EQ(order.source(order.inverse(r)), r);
        }
        spec.rope.style = ops::RopeStyle::interleaved;
        EXPECT_TRUE(row_order(spec, role).plain());
    }
    spec.rope.style = ops::RopeStyle::half;
    for (Role role : {Role::v, Role::v_bias, Role::o, Role::up, Role::embedding}) {
        EXPECT_TRUE(row_order(spec, role).plain());
        EXPECT_EQ(row_order(spec, role).source(17), 17);
    }
}

TEST(DeviceLayout, WhatDoesNotFitIsRefusedWithWhatWould) {
    const ModelSpec spec = random_shape("random:llama-2-7b").first;
    DeviceNeeds needs;
    needs.weights = device_weight_bytes(spec, DType::bf16);
    // Its parameters in bf16, the 65 norms in f32.
    EXPECT_EQ(needs.weights, 2 * 6738415616u + 2 * 65 * 4096u);
    needs.plan.add("weights", needs.weights);
    needs.plan.add("KV cache", std::uint64_t{32 * 2 * 4096 * 2} * 4096);
    needs.plan.add("activations", 100 << 20);
    const std::uint64_t total = needs.plan.total();
    EXPECT_NO_THROW(require_device_memory(needs, spec, total));
    const auto refusal = [&](std::uint64_t available) -> std::string {
        try {
            require_device_memory(needs, spec, available);
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::device);
            return error.what();
        }
        return "none";
    };
    needs.fitting = 4032;
    EXPECT_NE(refusal(total - 1).find("use --ctx 4032, or weights of q8_0 (6.67"),
              std::string::npos)
        << refusal(total - 1);
    needs.fitting = 0;
    const std::string at_8gb = refusal(std::uint64_t{8} << 30);
    EXPECT_EQ(at_8gb.find("--ctx"), std::string::npos) << at_8gb;
    EXPECT_EQ(at_8gb.find("q8_0 ("), std::string::npos) << at_8gb;
    EXPECT_NE(at_8gb.find("q4_0 (3.5"), std::string::npos) << at_8gb;
    EXPECT_NE(at_8gb.find("KV cache 2.00 GiB"), std::string::npos) << at_8gb;
    EXPECT_NE(refusal(1 << 20).find("smaller model"), std::string::npos) << refusal(1 << 20);
}

TEST(DeferredRandom, HasEverythingButTheMatrices) {
    for (DType type : {DType::bf16, DType::q8_0}) {
        ModelSpec spec = small();
        spec.hidden = 172;
        const Model made = random_model(spec, type, 9);
        const Model deferred = deferred_random_model(spec, type, 9);
        EXPECT_FALSE(made.deferred);
        ASSERT_TRUE(deferred.deferred);
        EXPECT_EQ(*deferred.deferred, 9u);
        const std::vector<RoleAt> roles = roles_of(spec);
        for (std::size_t i = 0; i < roles.size(); ++i) {
            const Tensor& a = role_slot(made.weights, roles[i]);
            const Tensor& b = role_slot(deferred.weights, roles[i]);
            EXPECT_EQ(a.shape, b.shape);
            EXPECT_EQ(a.dtype, b.dtype);
            if (!is_matrix(roles[i].role)) {
                EXPECT_EQ(std::memcmp(a.data, b.data, a.bytes()), 0);
                continue;
            }
            EXPECT_FALSE(b);
            // ... which equal RandomRows.
            std::vector<std::byte> row(a.row_bytes());
            for (std::int64_t r : {std::int64_t{0}, a.rows() - 1}) {
                RandomRows(a.dtype, a.cols(), 9, i).fill(row.data(), r);
                EXPECT_EQ(std::memcmp(row.data(), a.row<std::byte>(r), row.size()), 0);
            }
        }
        EXPECT_EQ(deferred.weights.bytes_per_token(), made.weights.bytes_per_token());
    }
    LoadOptions options;
    options.defer_random = true;
    const Model large = load_model("random:llama-2-7b:q4_0", options);
    EXPECT_LT(large.weights.owned_bytes, 2u << 20);
}

// Rows in the device's order, by the definition.
std::vector<std::byte> in_order(const Tensor& t, const RowOrder& order) {
    std::vector<std::byte> out(t.bytes());
    for (std::int64_t r = 0; r < t.rows(); ++r) {
        std::memcpy(out.data() + static_cast<std::size_t>(r) * t.row_bytes(),
                    t.row<std::byte>(order.source(r)), t.row_bytes());
    }
    return out;
}

TEST(WeightReader, FileAndMapAndMemoryGiveTheSameRows) {
    const test::TempFolder folder;
    ThreadPool pool(2);
    for (const char* name : {"qwen2", "llama3", "gpt2", "gpt-neox"}) {
        for (DType type : {DType::f32, DType::bf16, DType::q8_0}) {
            const std::string path = folder / "model.gguf";
            ConvertOptions options;
            options.type = type;
            convert_model(test::reference(name), path, options);
            for (const Model& model : {load_model(path), load_model(test::reference(name))}) {
                EXPECT_FALSE(model.weights.files.empty());
                const WeightReader from_file(model.weights, WeightReader::Through::file);
                const WeightReader from_map(model.weights, WeightReader::Through::map);
                for (RoleAt at : roles_of(model.spec)) {
                    if (!is_matrix(at.role)) continue;
                    const Tensor& t = role_slot(model.weights, at);
                    const RowOrder order = row_order(model.spec, at.role);
                    const std::vector<std::byte> expected = in_order(t, order);
                    for (const WeightReader* reader : {&from_file, &from_map}) {
                        std::vector<std::byte> got(t.bytes());
                        const std::int64_t first = t.rows() / 3;  // in two parts
                        reader->read(pool, t, order, 0, first, got.data());
                        reader->read(pool, t, order, first, t.rows() - first,
                                     got.data() + static_cast<std::size_t>(first) * t.row_bytes());
                        ASSERT_EQ(got, expected) << name << " " << static_cast<int>(at.role);
                    }
                }
            }
        }
    }
}

TEST(DeviceLayout, IsKnownBeforeAWeightIsRead) {
    for (const std::string& source : {test::reference("gpt-neox"), test::reference("llama2"),
                                      std::string("random:gpt2:q8_0")}) {
        LoadOptions options;
        options.defer_random = true;
        std::uint64_t planned = 0;
        options.planned = [&](const Model& model) { planned = device_weight_bytes(model); };
        const Model model = load_model(source, options);
        EXPECT_GT(planned, 0u);
        EXPECT_EQ(planned, device_weight_bytes(model)) << source;
    }
}

TEST(WeightReader, AFileThatBecameShorterIsAnError) {
    const test::TempFolder folder;
    const std::string path = folder / "model.gguf";
    ConvertOptions options;
    options.type = DType::bf16;
    convert_model("random:stories-42m", path, options);
    const Model model = load_model(path);
    std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
    ThreadPool pool(2);
    const WeightReader reader(model.weights);
    const Tensor& last = model.weights.layers.back().down;
    std::vector<std::byte> got(last.bytes());
    try {
        reader.read(pool, last, {}, 0, last.rows(), got.data());
        FAIL() << "half a file was enough";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input);
        EXPECT_NE(std::string(error.what()).find("was truncated while in use"), std::string::npos)
            << error.what();
    }
}

TEST(ReleaseHostWeights, KeepsShapesAndGivesTheRestBack) {
    Model model = load_model(test::reference("llama2"));
    const std::weak_ptr<void> file = model.weights.keep.front();
    const std::uint64_t bytes = device_weight_bytes(model);
    const std::uint64_t per_token = model.weights.bytes_per_token();
    release_host_weights(model);
    EXPECT_TRUE(file.expired());
    EXPECT_FALSE(model.weights.embedding);
    EXPECT_FALSE(model.weights.head);
    EXPECT_EQ(device_weight_bytes(model), bytes);
    EXPECT_EQ(model.weights.bytes_per_token(), per_token);
    EXPECT_EQ(model.tokenizer->vocab_size(), 288);
    EXPECT_FALSE(model.tokenizer->encode("Once upon a time").empty());
}

}  // namespace
}  // namespace mr::model
