#include "formats/llama2c.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <vector>

#include "core/philox.h"
#include "formats/bytes_builder.h"
#include "temp_folder.h"

namespace mr::formats {
namespace {

constexpr std::int32_t kDim = 8, kHidden = 12, kLayers = 2, kHeads = 2, kKvHeads = 1, kVocab = 10,
                       kSeq = 4, kKvDim = kDim / kHeads * kKvHeads;
constexpr auto kMostLayers = static_cast<std::int32_t>(kMaxLlama2cLayers);
using Sizes = std::array<std::int32_t, 7>;
constexpr Sizes kSizes = {kDim, kHidden, kLayers, kHeads, kKvHeads, kVocab, kSeq};

// Element `i` of the tensor with this number: different everywhere.
float element(int tensor, std::int64_t i) {
    return unit_float(
               philox(static_cast<std::uint64_t>(tensor), static_cast<std::uint64_t>(i))[0]) -
           0.5f;
}

// Writes files like llama2.c's export.py, and remembers the number of each tensor.
class Exporter {
  public:
    Bytes out;
    std::vector<std::string> names;
    std::vector<std::int64_t> counts;
    int group = 0;                               // > 0: int8 weights
    std::vector<std::vector<float>> as_written;  // the element values in the file

    void f32(const std::string& name, std::int64_t count) {
        std::vector<float> values = start(name, count);
        for (const float v : values) out.f32(v);
        as_written.push_back(std::move(values));
    }

    void weight(const std::string& name, std::int64_t count) {
        if (group == 0) return f32(name, count);
        const std::vector<float> values = start(name, count);
        std::vector<float> scales, written;
        for (std::int64_t g = 0; g < count; g += group) {
            float largest = 0;
            for (int i = 0; i < group; ++i) {
                largest = std::max(largest, std::fabs(values[static_cast<std::size_t>(g + i)]));
            }
            const float scale = largest / 127.0f;
            scales.push_back(scale);
            for (int i = 0; i < group; ++i) {  // rounds half to even, like torch.round
                const float q = std::nearbyint(values[static_cast<std::size_t>(g + i)] / scale);
                out.put(static_cast<std::int8_t>(q));
                written.push_back(q * scale);
            }
        }
        for (const float scale : scales) out.f32(scale);
        as_written.push_back(std::move(written));
    }

    void layers(const std::string& name, std::int64_t count, bool norm = false) {
        for (int i = 0; i < kLayers; ++i) {
            const std::string full = "layers." + std::to_string(i) + "." + name;
            norm ? f32(full, count) : weight(full, count);
        }
    }
    void attention() {
        layers("attention.wq", kDim * kDim);
        layers("attention.wk", kDim * kKvDim);
        layers("attention.wv", kDim * kKvDim);
        layers("attention.wo", kDim * kDim);
    }
    void feed_forward() {
        for (const char* name : {"feed_forward.w1", "feed_forward.w2", "feed_forward.w3"}) {
            layers(name, kDim * kHidden);
        }
    }

  private:
    std::vector<float> start(const std::string& name, std::int64_t count) {
        const int number = static_cast<int>(names.size());
        names.push_back(name);
        counts.push_back(count);
        std::vector<float> values;
        for (std::int64_t i = 0; i < count; ++i) values.push_back(element(number, i));
        return values;
    }
};

void put_sizes(Bytes& out, const Sizes& sizes) {
    for (const std::int32_t size : sizes) out.i32(size);
}

Exporter export_v0(bool shared, Sizes sizes = kSizes) {
    Exporter e;
    if (!shared) sizes[5] = -sizes[5];
    put_sizes(e.out, sizes);
    e.weight("tok_embeddings", kVocab * kDim);
    e.layers("attention_norm", kDim, true);
    e.attention();
    e.layers("ffn_norm", kDim, true);
    e.feed_forward();
    e.f32("norm", kDim);
    e.out.zeros(4 * kSeq * kDim / kHeads);  // rotary tables
    if (!shared) e.weight("output", kVocab * kDim);
    return e;
}

Exporter export_v12(int version, bool shared, int group = 0, const Sizes& sizes = kSizes,
                    int shared_byte = -1) {
    Exporter e;
    e.out.u32(0x616b3432).i32(version);
    put_sizes(e.out, sizes);
    e.out.u8(static_cast<std::uint8_t>(shared_byte < 0 ? shared : shared_byte));
    if (version == 2) e.out.i32(group);
    e.out.pad_to(256);
    e.layers("attention_norm", kDim, true);
    e.layers("ffn_norm", kDim, true);
    e.f32("norm", kDim);
    e.group = group > 0 ? group : 0;
    e.weight("tok_embeddings", kVocab * kDim);
    e.attention();
    e.feed_forward();
    if (!shared) e.weight("output", kVocab * kDim);
    return e;
}

void check(const Exporter& e, int version, bool shared) {
    const Llama2cFile file = Llama2cFile::parse(as_bytes(e.out.data()), "x.bin");
    const Llama2cHeader& h = file.header();
    EXPECT_EQ(h.version, version);
    EXPECT_EQ(h.dim, kDim);
    EXPECT_EQ(h.hidden_dim, kHidden);
    EXPECT_EQ(h.n_layers, kLayers);
    EXPECT_EQ(h.n_heads, kHeads);
    EXPECT_EQ(h.n_kv_heads, kKvHeads);
    EXPECT_EQ(h.vocab_size, kVocab);
    EXPECT_EQ(h.seq_len, kSeq);
    EXPECT_EQ(h.shared_classifier, shared);
    EXPECT_EQ(file.find_tensor("output") != nullptr, !shared);
    ASSERT_EQ(file.tensors().size(), e.names.size());
    for (std::size_t t = 0; t < e.names.size(); ++t) {
        SCOPED_TRACE(e.names[t]);
        const FileTensor* tensor = file.find_tensor(e.names[t]);
        ASSERT_NE(tensor, nullptr);
        EXPECT_EQ(tensor->view.dtype, DType::f32);
        ASSERT_EQ(tensor->view.shape.count(), e.counts[t]);
        for (std::size_t i = 0; i < e.as_written[t].size(); ++i) {
            float value;
            std::memcpy(&value, static_cast<const std::byte*>(tensor->view.data) + 4 * i, 4);
            ASSERT_EQ(value, e.as_written[t][i]) << i;  // exact in every version
        }
    }
    EXPECT_EQ(file.find_tensor("layers.1.attention.wk")->view.shape, (Shape{kKvDim, kDim}));
    EXPECT_EQ(file.find_tensor("layers.0.feed_forward.w2")->view.shape, (Shape{kDim, kHidden}));
    EXPECT_EQ(file.find_tensor("layers.0.feed_forward.w3")->view.shape, (Shape{kHidden, kDim}));
}

TEST(Llama2c, ReadsVersion0) {
    check(export_v0(true), 0, true);
    check(export_v0(false), 0, false);
}

TEST(Llama2c, ReadsVersion1) {
    check(export_v12(1, true), 1, true);
    check(export_v12(1, false), 1, false);
}

TEST(Llama2c, ReadsVersion2Exactly) {
    for (const int group : {1, 4, 8, 16}) check(export_v12(2, group != 4, group), 2, group != 4);
    const Exporter e = export_v12(2, true, 8);
    // Quantised: the original value within half a step of its group.
    const Llama2cFile file = Llama2cFile::parse(as_bytes(e.out.data()), "x.bin");
    EXPECT_EQ(file.header().group_size, 8);
    const int wq = static_cast<int>(
        std::find(e.names.begin(), e.names.end(), "layers.0.attention.wq") - e.names.begin());
    const float* values = file.find_tensor("layers.0.attention.wq")->view.f32();
    for (int i = 0; i < kDim * kDim; ++i) {
        EXPECT_NEAR(values[i], element(wq, i), 0.5f / 127 * 0.5f * 1.001f);  // |element| <= 0.5
    }
}

TEST(Llama2c, RefusesBadFiles) {
    const auto v0 = [](int field, std::int32_t value) {
        Sizes sizes = kSizes;
        sizes[static_cast<std::size_t>(field)] = value;
        return export_v0(true, sizes).out.data();
    };
    const auto v1 = [](int field, std::int32_t value) {
        Sizes sizes = kSizes;
        sizes[static_cast<std::size_t>(field)] = value;
        return export_v12(1, true, 0, sizes).out.data();
    };
    const std::string good0 = export_v0(true).out.data();
    const std::string good1 = export_v12(1, true).out.data();
    const std::string good2 = export_v12(2, true, 8).out.data();
    Bytes huge;
    put_sizes(huge, {INT32_MAX, INT32_MAX, kMostLayers, 1, 1, INT32_MAX, INT32_MAX});
    Bytes wraps;  // even heads, and sums past 2^64
    put_sizes(wraps, {1 << 30, 1 << 30, kMostLayers, 1 << 20, 1 << 20, 1 << 30, 1 << 30});
    struct Bad {
        const char* what;
        std::string data;
        std::vector<const char*> says;
    };
    const std::vector<Bad> bad = {
        {"empty", "", {"magic or dim", "offset 0"}},
        {"short", good0.substr(0, 10), {"n_layers", "offset 8"}},
        {"short head", good1.substr(0, 200), {"header", "past the end"}},
        {"truncated", good0.substr(0, good0.size() - 4), {"file length", "dim 8", "n_layers 2"}},
        {"longer", good0 + "1234", {"file length"}},
        {"v1 longer", good1 + "1", {"file length"}},
        {"v2 truncated", good2.substr(0, good2.size() - 1), {"file length", "version 2"}},
        {"dim 0", v0(0, 0), {"dim = 0", "offset 0"}},
        {"hidden_dim < 0", v0(1, -12), {"hidden_dim = -12", "offset 4"}},
        {"n_layers 0", v0(2, 0), {"n_layers = 0", "offset 8"}},
        {"n_layers of v1", v1(2, -1), {"n_layers = -1", "offset 16"}},
        {"many layers", v0(2, kMostLayers), {"file length", "n_layers 4096"}},
        {"more layers", v0(2, kMostLayers + 1), {"n_layers = 4097", "more than 4096", "offset 8"}},
        {"most layers", v1(2, INT32_MAX), {"n_layers = 2147483647", "offset 16"}},
        {"n_heads 0", v0(3, 0), {"n_heads = 0"}},
        {"n_heads 3", v0(3, 3), {"n_heads = 3", "dim = 8"}},
        {"odd heads", v0(3, 8), {"n_heads = 8", "even"}},
        {"n_kv_heads 0", v0(4, 0), {"n_kv_heads = 0"}},
        {"n_kv_heads 4", v0(4, 4), {"n_kv_heads = 4", "n_heads = 2"}},
        {"vocab_size 0", v0(5, 0), {"vocab_size = 0"}},
        {"vocab_size least", v0(5, INT32_MIN), {"file length", "vocab_size 2147483648"}},
        {"untied v1", v1(5, -10), {"vocab_size = -10", "offset 28"}},
        {"seq_len", v0(6, -1), {"seq_len = -1"}},
        {"huge", huge.data(), {"n_heads = 1", "even"}},
        {"wraps", wraps.data(), {"more than 2^64"}},
        {"version 3", export_v12(3, true).out.data(), {"version = 3", "offset 4"}},
        {"shared 2", export_v12(1, true, 0, kSizes, 2).out.data(), {"shared_classifier = 2"}},
        {"group 0", export_v12(2, true, 0).out.data(), {"group_size = 0"}},
        {"group -8", export_v12(2, true, -8).out.data(), {"group_size = -8", "offset 37"}},
        {"group 7",
         Bytes().raw(good2.substr(0, 37)).i32(7).raw(good2.substr(41)).data(),
         {"group_size = 7", "does not divide"}},
        {"GGUF", Bytes().raw("GGUF").u32(3).zeros(64).data(), {"n_layers = 0"}},
    };
    for (const Bad& file : bad) {
        SCOPED_TRACE(file.what);
        const std::string message =
            input_error([&] { Llama2cFile::parse(as_bytes(file.data), "bad.bin"); });
        EXPECT_HAS(message, "bad.bin");
        for (const char* part : file.says) EXPECT_HAS(message, part);
    }
}

// Holes of a sparse file take no disk space, but each layer would take 3 KB of memory.
TEST(Llama2c, HolesDoNotBecomeMemory) {
    const test::TempFolder folder;
    const auto open = [&](std::int32_t layers) {
        Bytes head;  // version 1: dim 2, hidden_dim, heads, vocabulary and context 1
        head.u32(0x616b3432).i32(1);
        put_sizes(head, {2, 1, layers, 1, 1, 1, 1});
        head.u8(1).pad_to(256);
        const std::string path = folder.write("holes.bin", head.data());
        // Of a layer: two norms, wq, wk, wv, wo, w1, w2 and w3. Then the norm and the embedding.
        const std::uint64_t numbers = 26 * static_cast<std::uint64_t>(layers) + 2 + 2;
        std::filesystem::resize_file(path, 256 + 4 * numbers);
        return Llama2cFile::open(path);
    };
    EXPECT_EQ(open(kMostLayers).tensors().size(), 9u * kMostLayers + 2);
    EXPECT_HAS(input_error([&] { open(kMostLayers + 1); }), "n_layers = 4097: is more than 4096");
    EXPECT_HAS(input_error([&] { open(2'000'000); }), "n_layers = 2000000: is more than 4096");
}

TEST(Llama2c, ReadsARealModel) {
    const std::string path = test_data() + "/models/stories260K.bin";
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path << ": set MILLRACE_DATA";
    const Llama2cFile file = Llama2cFile::open(path);
    const Llama2cHeader& h = file.header();
    EXPECT_EQ(h.version, 0);
    EXPECT_EQ(h.dim, 64);
    EXPECT_EQ(h.hidden_dim, 172);
    EXPECT_EQ(h.n_layers, 5);
    EXPECT_EQ(h.n_heads, 8);
    EXPECT_EQ(h.n_kv_heads, 4);
    EXPECT_EQ(h.vocab_size, 512);
    EXPECT_EQ(h.seq_len, 512);
    EXPECT_TRUE(h.shared_classifier);
    EXPECT_EQ(file.tensors().size(), 2u + 9u * 5u);
    for (const FileTensor& tensor : file.tensors()) {  // weights of a trained model
        for (std::int64_t i = 0; i < tensor.view.shape.count(); ++i) {
            float value;
            std::memcpy(&value, static_cast<const std::byte*>(tensor.view.data) + 4 * i, 4);
            ASSERT_LT(std::fabs(value), 20.0f) << tensor.name;
        }
    }
}

}  // namespace
}  // namespace mr::formats
