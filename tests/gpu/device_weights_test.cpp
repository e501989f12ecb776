// Weights on the device equal the host's byte for byte, in the layout that kernels expect.
#include "model/cuda/device_weights.h"

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "core/cuda/copy_speed.h"
#include "core/cuda/testing.h"
#include "core/error.h"
#include "families.h"
#include "model/cuda/device_layout.h"
#include "model/io/convert.h"
#include "model/io/random.h"
#include "ops/linear/tile_layout.h"
#include "support.h"
#include "temp_folder.h"

namespace mr::model {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0};

class DeviceWeightsTest : public cuda::GpuTest {
  protected:
    std::vector<std::byte> bytes_of(const void* device, std::size_t count) {
        return download(static_cast<const std::byte*>(device), count);
    }

    // The expected device content of a host tensor, by the definitions: rows of q and k (and their
    // biases and norms) with 2i from i and 2i + 1 from i + rotary/2, then tiles.
    static std::vector<std::byte> expected(const ModelSpec& spec, Role role, const Tensor& host) {
        const bool rotated = role == Role::q || role == Role::k || role == Role::q_bias ||
                             role == Role::k_bias || role == Role::q_norm || role == Role::k_norm;
        const bool halves = rotated && spec.rope.style == ops::RopeStyle::half;
        const std::int64_t rows = host.dim(0), half = spec.rope.rotary / 2;
        const std::size_t row_bytes = host.shape.rank == 1 ? 4 : host.row_bytes();
        const auto* from = static_cast<const std::byte*>(host.data);
        std::vector<std::byte> out(static_cast<std::size_t>(rows) * row_bytes);
        const auto put = [&](std::int64_t to_row, std::int64_t from_row) {
            std::memcpy(out.data() + static_cast<std::size_t>(to_row) * row_bytes,
                        from + static_cast<std::size_t>(from_row) * row_bytes, row_bytes);
        };
        for (std::int64_t r = 0; r < rows; ++r) put(r, r);
        for (std::int64_t head = 0; halves && head < rows; head += spec.head_dim) {
            for (std::int64_t i = 0; i < half; ++i) {
                put(head + 2 * i, head + i);
                put(head + 2 * i + 1, head + i + half);
            }
        }
        if (host.dtype != DType::q8_0 && host.dtype != DType::q4_0) return out;
        const DType tiled = host.dtype == DType::q8_0 ? DType::q8_0x8 : DType::q4_0x8;
        std::vector<std::byte> tiles(ops::tile_bytes(tiled, rows, host.dim(1)));
        ops::pack_tiles(tiled, out.data(), rows, host.dim(1), tiles.data());
        return tiles;
    }

    // Every tensor, and the joined ones.
    void expect_same(const Model& host, const DeviceWeights& device, const std::string& what) {
        const ModelSpec& spec = host.spec;
        for (RoleAt at : roles_of(spec)) {
            const Tensor& from = role_slot(host.weights, at);
            const Tensor& to = role_slot(device.weights, at);
            ASSERT_TRUE(from && to) << what;
            ASSERT_EQ(to.shape, from.shape) << what;
            const std::vector<std::byte> want = expected(spec, at.role, from);
            const std::vector<std::byte> got = bytes_of(to.data, want.size());
            const auto wrong = std::mismatch(want.begin(), want.end(), got.begin());
            ASSERT_EQ(wrong.first - want.begin(), static_cast<std::ptrdiff_t>(want.size()))
                << what << ", role " << static_cast<int>(at.role) << " of layer " << at.layer
                << ", " << dtype_name(from.dtype) << " " << from.shape.str()
                << ": the first byte that differs";
        }
        EXPECT_EQ(device.weights.head.data == device.weights.embedding.data, spec.tied_embeddings);
        ASSERT_EQ(device.layers.size(), static_cast<std::size_t>(spec.layers));
        for (std::size_t i = 0; i < device.layers.size(); ++i) {
            const LayerWeights& w = device.weights.layers[i];
            if (spec.qkv_bias) {
                EXPECT_EQ(device.layers[i].qkv_bias.data, w.q_bias.data);
                EXPECT_EQ(w.k_bias.data, w.q_bias.f32() + spec.q_dim());
                EXPECT_EQ(w.v_bias.data, w.k_bias.f32() + spec.kv_dim());
            }
            if (device.layers[i].qkv) {
                EXPECT_EQ(device.layers[i].qkv.data, w.q.data);
                EXPECT_EQ(w.k.data, static_cast<std::byte*>(w.q.data) +
                                        device_matrix_bytes(w.q.dtype, w.q.dim(0), w.q.dim(1)));
            }
            if (device.layers[i].gate_up) {
                EXPECT_EQ(device.layers[i].gate_up.data, w.gate.data);
            }
        }
    }

    // The plan was exact, and the ledger counted every byte.
    void expect_accounts(const Model& host, const DeviceWeights& device, const Ledger& ledger,
                         bool made_there) {
        EXPECT_EQ(device.bytes, device_weight_bytes(host));
        EXPECT_EQ(device.memory.size(), device.bytes);
        EXPECT_EQ(device.memory.used(), device.bytes);
        std::uint64_t sent = device_views(host.spec, types_of(host), 0).vector_bytes;
        for (RoleAt at : roles_of(host.spec)) {
            if (is_matrix(at.role) && !made_there) sent += role_slot(host.weights, at).bytes();
        }
        EXPECT_EQ(ledger.host_to_device().bytes, sent);
        EXPECT_EQ(ledger.device_to_host().bytes, 0u);
    }

    ThreadPool pool_{4};
};

class DeviceWeightsOf : public DeviceWeightsTest,
                        public ::testing::WithParamInterface<const char*> {};

TEST_P(DeviceWeightsOf, EveryTypeArrivesAsItIs) {
    const test::TempFolder folder;
    for (DType type : kTypes) {
        const std::string path = folder / "model.gguf";
        ConvertOptions options;
        options.type = type;
        convert_model(test::reference(GetParam()), path, options);
        const Model model = load_model(path);
        Ledger ledger;
        const auto device = load_to_device(model, pool_, &ledger);
        expect_same(model, *device, dtype_name(type));
        expect_accounts(model, *device, ledger, false);
    }
    // As in the file: fused, transposed, in shards.
    const Model model = load_model(test::reference(GetParam()));
    for (bool through_map : {false, true}) {
        DeviceLoadOptions options;
        options.through_map = through_map;
        expect_same(model, *load_to_device(model, pool_, nullptr, {}, options), "as published");
    }
}

INSTANTIATE_TEST_SUITE_P(Families, DeviceWeightsOf, ::testing::ValuesIn(test::kFamilies),
                         test::family_name);

// dim 64, hidden 172 (no whole blocks or tiles), heads with partial rotation, biases
// everywhere.
ModelSpec odd(ops::RopeStyle style, int rotary) {
    ModelSpec spec;
    spec.family = "qwen2";
    spec.vocab = 301;
    spec.dim = 64;
    spec.hidden = 172;
    spec.layers = 2;
    spec.heads = 6;
    spec.kv_heads = 2;
    spec.head_dim = 12;  // q has 72 rows, k 24: tiles cross the heads
    spec.context = 40;
    spec.qkv_bias = spec.out_bias = spec.qk_norm = true;
    spec.rope.style = style;
    spec.rope.rotary = rotary;
    return spec;
}

TEST_F(DeviceWeightsTest, OddShapesThroughSmallChunks) {
    for (DType type : kTypes) {
        for (const ModelSpec& spec :
             {odd(ops::RopeStyle::half, 8), odd(ops::RopeStyle::half, 12),
              odd(ops::RopeStyle::interleaved, 12), odd(ops::RopeStyle::half, 0)}) {
            const Model model = random_model(spec, type, 5);
            for (const auto& [bytes, chunks] :
                 std::vector<std::pair<std::size_t, int>>{{1, 1}, {3000, 2}, {8192, 3}}) {
                DeviceLoadOptions options;
                options.chunk_bytes = bytes;
                options.chunks = chunks;
                Ledger ledger;
                const auto device = load_to_device(model, pool_, &ledger, {}, options);
                expect_same(model, *device, std::string("odd ") + dtype_name(type));
                expect_accounts(model, *device, ledger, false);
            }
        }
    }
}

TEST_F(DeviceWeightsTest, RandomMadeThereIsRandomMadeHere) {
    for (DType type : kTypes) {
        std::vector<ModelSpec> specs = {odd(ops::RopeStyle::half, 8),
                                        odd(ops::RopeStyle::interleaved, 12)};
        for (const char* name : {"random:stories-42m", "random:gpt2"}) {
            specs.push_back(random_shape(name).first);
        }
        specs.back().layers = 2;
        specs[2].layers = 3;
        specs.push_back(random_shape("random:pythia-2.8b").first);  // a quarter of the head
        specs.back().layers = 1;
        specs.back().vocab = 5003;
        for (const ModelSpec& spec : specs) {
            const Model host = random_model(spec, type, 11);
            const Model deferred = deferred_random_model(spec, type, 11);
            Ledger ledger;
            const auto device = load_to_device(deferred, pool_, &ledger);
            expect_same(host, *device, spec.family + " " + dtype_name(type));
            expect_accounts(deferred, *device, ledger, true);
        }
    }
}

TEST_F(DeviceWeightsTest, TypesMayDifferFromTensorToTensor) {
    const ModelSpec spec = odd(ops::RopeStyle::half, 12);
    const Model q8 = random_model(spec, DType::q8_0, 2), q4 = random_model(spec, DType::q4_0, 3),
                f16 = random_model(spec, DType::f16, 4);
    Model mixed = q4;
    mixed.weights.layers[0].v = q8.weights.layers[0].v;
    mixed.weights.layers[1].k = f16.weights.layers[1].k;
    mixed.weights.layers[1].up = q8.weights.layers[1].up;
    mixed.weights.embedding = f16.weights.embedding;
    mixed.weights.head = q8.weights.head;
    Ledger ledger;
    const auto device = load_to_device(mixed, pool_, &ledger);
    expect_same(mixed, *device, "mixed");
    expect_accounts(mixed, *device, ledger, false);
    EXPECT_FALSE(device->layers[0].qkv);
    EXPECT_FALSE(device->layers[1].qkv);
}

TEST_F(DeviceWeightsTest, WhatDoesNotFitIsRefusedBeforeAnythingIsTaken) {
    ModelSpec spec = random_shape("random:llama-2-7b").first;
    spec.layers = 4000;  // 3.2 TB in f32
    const Model model = deferred_random_model(spec, DType::f32, 1);
    const std::uint64_t before = cuda::device()->free_bytes;
    try {
        load_to_device(model, pool_, nullptr);
        FAIL() << "terabytes were given";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::device);
        EXPECT_NE(std::string(error.what()).find("weights 2.9"), std::string::npos) << error.what();
    }
    EXPECT_EQ(cuda::device()->free_bytes, before);
}

TEST_F(DeviceWeightsTest, LeavingInTheMiddleGivesEverythingBack) {
    const Model model = random_model(random_shape("random:stories-42m").first, DType::q8_0, 1);
    load_to_device(model, pool_, nullptr);  // first-time allocations of the driver
    const std::uint64_t before = cuda::device()->free_bytes;
    int calls = 0;
    std::uint64_t last = 0;
    const Progress leave = [&](std::string_view, std::uint64_t done, std::uint64_t total) {
        EXPECT_GE(done, last);
        EXPECT_LE(done, total);
        last = done;
        if (++calls == 10) throw std::runtime_error("enough");
    };
    EXPECT_THROW(load_to_device(model, pool_, nullptr, leave), std::runtime_error);
    EXPECT_EQ(calls, 10);
    EXPECT_EQ(cuda::device()->free_bytes, before);
    expect_same(model, *load_to_device(model, pool_, nullptr), "afterwards");
}

TEST_F(DeviceWeightsTest, AFileThatBecameShorterIsAnError) {
    const test::TempFolder folder;
    const std::string path = folder / "model.gguf";
    convert_model("random:stories-42m", path);
    const Model model = load_model(path);
    std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
    try {
        load_to_device(model, pool_, nullptr);
        FAIL() << "half a file was enough";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
    }
}

TEST_F(DeviceWeightsTest, CopiesHaveASpeed) {
    const cuda::CopySpeed speed = cuda::measure_copy_speed();
    EXPECT_GT(speed.to_device, 1e9);  // PCIe 3.0 x4 has more
    EXPECT_GT(speed.to_host, 1e9);
    EXPECT_LT(speed.to_device, 1e12);
}

TEST_F(DeviceWeightsTest, TheHostsCopyCanGo) {
    Model model = load_model(test::reference("qwen3"));
    const auto device = load_to_device(model, pool_, nullptr);
    release_host_weights(model);
    expect_same(load_model(test::reference("qwen3")), *device, "alone");
}

}  // namespace
}  // namespace mr::model
