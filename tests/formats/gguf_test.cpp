#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <vector>

#include "formats/bytes_builder.h"
#include "formats/gguf_writer.h"
#include "temp_folder.h"

namespace mr::formats {
namespace {

constexpr std::uint32_t kU8 = 0, kI8 = 1, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8,
                        kArray = 9, kU64 = 10, kI64 = 11, kF64 = 12;

struct Gguf : Bytes {  // with a header, and GGUF's strings
    Gguf(std::uint64_t tensors, std::uint64_t entries, std::uint32_t version = 3) {
        raw("GGUF").u32(version).u64(tensors).u64(entries);
    }
    Gguf& text(std::string_view value) {
        u64(value.size()).raw(value);
        return *this;
    }
    Gguf& key(std::string_view name, std::uint32_t type) {
        text(name).u32(type);
        return *this;
    }
    Gguf& info(std::string_view name, std::vector<std::uint64_t> dims, std::uint32_t type,
               std::uint64_t offset) {
        text(name).u32(static_cast<std::uint32_t>(dims.size()));
        for (const std::uint64_t dim : dims) u64(dim);
        u32(type).u64(offset);
        return *this;
    }
};

std::string parse_error(const std::string& data) {
    return input_error([&] { GgufFile::parse(as_bytes(data), "bad.gguf"); });
}

TEST(Gguf, ReadsEveryTypeOfValue) {
    for (const std::uint32_t version : {2u, 3u}) {
        Gguf b(0, 15, version);
        b.key("a.u8", kU8).u8(200);
        b.key("a.i8", kI8).u8(0xff);
        b.key("a.u16", 2).put<std::uint16_t>(65535);
        b.key("a.i16", 3).put<std::int16_t>(-2);
        b.key("a.u32", kU32).u32(4000000000u);
        b.key("a.i32", kI32).i32(-7);
        b.key("a.f32", kF32).f32(0.5f);
        b.key("a.bool", kBool).u8(1);
        b.key("a.string", kString).u64(5).raw("hello");
        b.key("a.u64", kU64).u64(~std::uint64_t{0});
        b.key("a.i64", kI64).put<std::int64_t>(-5000000000);
        b.key("a.f64", kF64).put(1e300);
        b.key("a.strings", kArray).u32(kString).u64(2).u64(1).raw("x").u64(0);
        b.key("a.floats", kArray).u32(kF64).u64(2).put(0.25).put(1e300);
        b.key("a.nested", kArray).u32(kArray).u64(1).u32(kU8).u64(2).u8(1).u8(2);
        const GgufFile file = GgufFile::parse(as_bytes(b.data()), "x.gguf");
        EXPECT_EQ(file.version(), version);
        EXPECT_EQ(file.get_uint("a.u8"), 200u);
        EXPECT_EQ(file.get_int("a.i8"), -1);
        EXPECT_EQ(file.get_uint("a.u16"), 65535u);
        EXPECT_EQ(file.get_int("a.i16"), -2);
        EXPECT_EQ(file.get_uint("a.u32"), 4000000000u);
        EXPECT_EQ(file.get_int("a.i32"), -7);
        EXPECT_EQ(file.get_float("a.i32"), -7.0);
        EXPECT_EQ(file.get_float("a.f32"), 0.5);
        EXPECT_EQ(file.get_bool("a.bool"), true);
        EXPECT_EQ(file.get_string("a.string"), "hello");
        EXPECT_EQ(file.get_uint("a.u64"), ~std::uint64_t{0});
        EXPECT_EQ(file.get_int("a.i64"), -5000000000);
        EXPECT_EQ(file.get_float("a.f64"), 1e300);
        EXPECT_EQ(file.get_strings("a.strings"), (std::vector<std::string_view>{"x", ""}));
        EXPECT_EQ(file.get_floats("a.floats")->at(0), 0.25f);
        EXPECT_TRUE(std::isinf(file.get_floats("a.floats")->at(1)));
        EXPECT_EQ(file.type_of("a.nested"), GgufType::array);
        EXPECT_FALSE(file.has("a.none"));
        EXPECT_EQ(file.get_uint("a.none"), std::nullopt);
        EXPECT_EQ(file.get_strings("a.none"), std::nullopt);
        EXPECT_EQ(file.keys().size(), 15u);
        EXPECT_EQ(file.keys()[8], "a.string");

        // The wrong type: the error names the key and the type it has.
        const auto wrong = [&](auto&& get, const char* key, const char* has) {
            const std::string message = input_error([&] { get(); });
            EXPECT_HAS(message, key);
            EXPECT_HAS(message, has);
            EXPECT_HAS(message, "x.gguf");
        };
        wrong([&] { file.get_uint("a.f32"); }, "a.f32", "f32");
        wrong([&] { file.get_uint("a.i32"); }, "a.i32", "-7: is negative");
        wrong([&] { file.get_int("a.u64"); }, "a.u64", "63 bits");
        wrong([&] { file.get_float("a.string"); }, "a.string", "string");
        wrong([&] { file.get_bool("a.u8"); }, "a.u8", "a bool");
        wrong([&] { file.get_string("a.strings"); }, "a.strings", "array of 2 string");
        wrong([&] { file.get_strings("a.floats"); }, "a.floats", "array of 2 f64");
        wrong([&] { file.get_floats("a.strings"); }, "a.strings", "array of 2 string");
        wrong([&] { file.get_ints("a.nested"); }, "a.nested", "array of 1 array");
        wrong([&] { file.get_ints("a.u8"); }, "a.u8", "an array of integers");
    }
}

// One f32 tensor of 2 x 3 and one q8_0 of 2 x 32.
std::string two_tensors(std::uint64_t second_offset = 32) {
    Gguf b(2, 0);
    b.info("w", {3, 2}, 0, 0).info("q", {32, 2}, 8, second_offset);
    b.pad_to(32);
    for (int i = 0; i < 6; ++i) b.f32(static_cast<float>(i));
    b.pad_to(32).zeros(68);
    return b.data();
}

TEST(Gguf, FindsTensors) {
    const std::string data = two_tensors();
    const GgufFile file = GgufFile::parse(as_bytes(data), "x.gguf");
    ASSERT_EQ(file.tensors().size(), 2u);
    const FileTensor* w = file.find_tensor("w");
    ASSERT_NE(w, nullptr);
    EXPECT_EQ(w->view.shape, (Shape{2, 3}));  // outermost first
    EXPECT_EQ(w->view.dtype, DType::f32);
    EXPECT_EQ(w->offset % 32, 0u);
    float last;
    std::memcpy(&last, static_cast<const std::byte*>(w->view.data) + 20, sizeof last);
    EXPECT_EQ(last, 5.0f);
    EXPECT_EQ(file.find_tensor("q")->view.dtype, DType::q8_0);
    EXPECT_EQ(file.find_tensor("q")->view.bytes(), 68u);
    EXPECT_EQ(file.find_tensor("q")->offset, w->offset + 32);
    EXPECT_EQ(file.find_tensor("none"), nullptr);
}

struct BadFile {
    const char* what;
    std::string data;
    std::vector<const char*> says;
};

std::vector<BadFile> bad_files() {
    constexpr std::uint64_t kHuge = std::uint64_t{1} << 62;
    std::vector<BadFile> out;
    const auto add = [&](const char* what, const Bytes& bytes, std::vector<const char*> says) {
        out.push_back({what, bytes.data(), std::move(says)});
    };
    const auto value = [](std::string_view key, std::uint32_t type) {
        Gguf b(0, 1);
        b.key(key, type);
        return b;
    };
    const auto tensor = [](std::vector<std::uint64_t> dims, std::uint32_t type,
                           std::uint64_t offset) {
        Gguf b(1, 0);
        b.info("w", std::move(dims), type, offset).pad_to(32).zeros(64);
        return b;
    };

    add("empty", Bytes(), {"magic", "offset 0"});
    add("magic", Bytes().raw("GGML").zeros(60), {"magic = 0x4c4d4747", "offset 0"});
    add("version 1", Gguf(0, 0, 1), {"version = 1", "offset 4"});
    add("version 4", Gguf(0, 0, 4), {"version = 4"});
    add("big-endian", Gguf(0, 0, 0x03000000), {"version = 50331648", "big-endian"});
    add("no counts", Bytes().raw("GGUF").u32(3), {"tensor_count"});
    add("huge entry count", Gguf(0, kHuge), {"metadata_kv_count = 4611686018427387904", "16"});
    add("huge tensor count", Gguf(kHuge, 0), {"tensor_count = 4611686018427387904", "offset 8"});
    add("most entries", Gguf(0, ~std::uint64_t{0}), {"metadata_kv_count"});
    add("key past the end", Gguf(0, 1).u64(kHuge).zeros(20), {"key of metadata 0", "offset 24"});
    add("key that wraps", Gguf(0, 1).u64(~std::uint64_t{7}).zeros(20), {"key of metadata 0"});
    add("empty key", Gguf(0, 1).text("").u32(kU32).u32(1), {"key of metadata 0 = ''"});
    add("binary key", Gguf(0, 1).text("a\xff\n").u32(kU32).u32(1), {"'a\\xff\\x0a'"});
    add("unknown type", value("k", 13).u32(1), {"k (type) = 13"});
    add("value past the end", value("key", kU64).zeros(2), {"key = 8 bytes", "past the end"});
    add("not a bool", value("kk", kBool).u8(7), {"kk = 7", "bool"});
    add("string past the end", value("name", kString).u64(100).raw("abc"),
        {"name = string of 100 bytes", "3 bytes are left"});
    add("string that wraps", value("name", kString).u64(~std::uint64_t{0}).raw("abc"),
        {"name = string of 18446744073709551615"});
    add("huge array", value("arr", kArray).u32(kF32).u64(kHuge).zeros(16),
        {"arr (array length) = 4611686018427387904"});
    add("array whose bytes wrap", value("arr", kArray).u32(kF64).u64(kHuge / 2 + 1).zeros(16),
        {"arr (array length)"});
    add("huge array of strings", value("arr", kArray).u32(kString).u64(1u << 30).zeros(16),
        {"arr (array length) = 1073741824"});
    add("element type", value("arr", kArray).u32(99).u64(1).zeros(16), {"arr (element type) = 99"});
    add("bool in array", value("arr", kArray).u32(kBool).u64(2).u8(1).u8(2), {"arr = 2", "bool"});
    Gguf deep = value("deep", kArray);
    for (int i = 0; i < 64; ++i) deep.u32(kArray).u64(1);
    add("deep array", deep.zeros(64), {"deep", "nested deeper than 4"});
    Gguf twice(0, 2);
    twice.key("same", kU32).u32(1);
    twice.key("same", kU32).u32(2);
    add("key twice", twice, {"same", "twice"});
    add("alignment 0", value("general.alignment", kU32).u32(0), {"general.alignment = 0"});
    add("alignment 24", value("general.alignment", kU32).u32(24), {"general.alignment = 24"});
    add("alignment 2^31", value("general.alignment", kU32).u32(1u << 31), {"= 2147483648"});
    add("alignment text", value("general.alignment", kString).u64(2).raw("32"),
        {"general.alignment = string"});

    add("tensor name", Gguf(1, 0).u64(kHuge).zeros(64), {"name of tensor 0"});
    add("no tensor name", Gguf(1, 0).info("", {1}, 0, 0).zeros(64), {"name of tensor 0 = ''"});
    add("binary tensor name", Gguf(1, 0).info("\xc0\x80", {1}, 0, 0).zeros(64),
        {"name of tensor 0 = '\\xc0\\x80'"});
    add("no dims", tensor({}, 0, 0), {"tensor 'w' n_dims = 0"});
    add("five dims", tensor({1, 1, 1, 1, 1}, 0, 0), {"tensor 'w' n_dims = 5"});
    add("zero dim", tensor({4, 0}, 0, 0), {"tensor 'w' dims[1] = 0"});
    add("dims that wrap", tensor({1ull << 32, 1ull << 32}, 0, 0), {"dims[1] = 4294967296"});
    add("negative dim", tensor({~std::uint64_t{0}}, 0, 0), {"dims[0] = 18446744073709551615"});
    add("bytes that wrap", tensor({1ull << 62}, 0, 0), {"dims[0] = 4611686018427387904"});
    add("unknown tensor type", tensor({4}, 77, 0), {"tensor 'w' type = 77"});
    add("unsupported type", tensor({256}, 10, 0), {"tensor 'w' type = Q2_K", "Q4_K"});
    add("half a block", tensor({48}, 8, 0), {"dims[0] = 48", "32 elements of a Q8_0"});
    add("offset", tensor({4}, 0, 4), {"tensor 'w' offset = 4", "alignment 32"});
    add("past the end", tensor({17}, 0, 0), {"tensor 'w' offset = 0", "68 bytes runs past"});
    add("offset past the end", tensor({4}, 0, 64), {"offset = 64", "past the end"});
    add("offset that wraps", tensor({4}, 0, ~std::uint64_t{31}), {"offset = 18446744073709551584"});
    out.push_back({"overlap", two_tensors(0), {"overlaps tensor"}});
    Gguf same(2, 0);
    same.info("w", {1}, 0, 0).info("w", {1}, 0, 32).pad_to(32).zeros(64);
    add("tensor twice", same, {"tensor 'w'", "twice"});
    return out;
}

TEST(Gguf, RefusesBadFiles) {
    for (const BadFile& bad : bad_files()) {
        SCOPED_TRACE(bad.what);
        const std::string message = parse_error(bad.data);
        EXPECT_HAS(message, "bad.gguf");
        EXPECT_HAS(message, "offset");
        for (const char* part : bad.says) EXPECT_HAS(message, part);
    }
}

TEST(Gguf, RefusesEveryTruncation) {
    const std::string data = two_tensors();
    EXPECT_NO_THROW(GgufFile::parse(as_bytes(data), "whole.gguf"));
    for (std::size_t size = 0; size < data.size(); ++size) {
        parse_error(data.substr(0, size));
    }
}

// Holes in a sparse file are zeros that take no disk space: every 8 of them are an empty string.
TEST(Gguf, HolesDoNotBecomeMemory) {
    const test::TempFolder folder;
    const auto error_of = [&](const Gguf& head) {
        const std::string path = folder.write("holes.gguf", head.data());
        std::filesystem::resize_file(path, std::uint64_t{4} << 30);
        return input_error([&] { GgufFile::open(path); });
    };
    Gguf strings(0, 1);
    strings.key("tokenizer.ggml.tokens", kArray).u32(kString).u64(100'000'000);
    EXPECT_HAS(error_of(strings), "tokenizer.ggml.tokens (array length) = 100000000: is more than");
    Gguf twice(0, 2);  // together they are too many
    twice.key("a", kArray).u32(kBool).u64(3'000'000).zeros(3'000'000);
    twice.key("b", kArray).u32(kBool).u64(3'000'000);
    EXPECT_HAS(error_of(twice), "b (array length) = 3000000: is more than");
    Gguf lists(0, 1);
    lists.key("a", kArray).u32(kArray).u64(100'000'000);
    EXPECT_HAS(error_of(lists), "is more than");
    Gguf numbers(0, 1);
    numbers.key("a", kArray).u32(kU64).u64(400'000'000);
    EXPECT_HAS(error_of(numbers), "is more than");
    EXPECT_HAS(error_of(Gguf(0, 100'000'000)), "metadata_kv_count = 100000000: is more than");
    EXPECT_HAS(error_of(Gguf(100'000'000, 0)), "tensor_count = 100000000: is more than");
}

TEST(Gguf, WhatIsWrittenIsRead) {
    const test::TempFolder folder;
    const std::string path = folder / "out.gguf";
    const std::vector<std::string> words = {"a", "", "\xff\x00z"};
    const std::vector<float> scores = {1.5f, -2.0f};
    const std::vector<std::int32_t> kinds = {1, -1};
    std::vector<float> w(6);
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i);
    const std::vector<std::byte> q(34 * 2, std::byte{3});
    const auto write = [&](const std::string& to) {
        GgufWriter writer(to);
        writer.set_string("general.architecture", "llama");
        writer.set_u32("llama.block_count", 7);
        writer.set_i32("i", -3);
        writer.set_f32("f", 1e-5f);
        writer.set_bool("b", true);
        writer.set_strings("words", words);
        writer.set_floats("scores", scores);
        writer.set_ints("kinds", kinds);
        writer.declare("w", DType::f32, {2, 3});
        writer.declare("q", DType::q8_0, {2, 32});
        writer.write(w.data(), 8);  // in parts
        writer.write(w.data() + 2, 16);
        writer.write(q.data(), q.size());
        writer.finish();
    };
    write(path);
    EXPECT_EQ(folder.files(), 1u);
    const GgufFile file = GgufFile::open(path);
    EXPECT_EQ(file.version(), 3u);
    EXPECT_EQ(file.get_string("general.architecture"), "llama");
    EXPECT_EQ(file.get_uint("llama.block_count"), 7u);
    EXPECT_EQ(file.get_int("i"), -3);
    EXPECT_EQ(file.get_float("f"), static_cast<double>(1e-5f));
    EXPECT_EQ(file.get_bool("b"), true);
    EXPECT_EQ(file.get_strings("words")->at(2), words[2]);
    EXPECT_EQ(file.get_floats("scores"), scores);
    EXPECT_EQ(file.get_ints("kinds"), (std::vector<std::int64_t>{1, -1}));
    const FileTensor* read = file.find_tensor("w");
    ASSERT_NE(read, nullptr);
    EXPECT_EQ(read->view.shape, (Shape{2, 3}));
    EXPECT_EQ(std::memcmp(read->view.data, w.data(), 24), 0);
    EXPECT_EQ(std::memcmp(file.find_tensor("q")->view.data, q.data(), q.size()), 0);

    // Copied metadata is the same metadata.
    {
        GgufWriter writer(folder / "copy.gguf");
        for (const std::string& key : file.keys()) writer.copy(file, key);
        for (const FileTensor& tensor : file.tensors()) {
            writer.declare(tensor.name, tensor.view.dtype, tensor.view.shape);
        }
        for (const FileTensor& tensor : file.tensors()) {
            writer.write(tensor.view.data, tensor.view.bytes());
        }
        writer.finish();
    }
    const MappedFile a(path), b(folder / "copy.gguf");
    EXPECT_TRUE(std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin(), b.bytes().end()));
}

TEST(Gguf, UnfinishedWritingLeavesNothing) {
    const test::TempFolder folder;
    {
        GgufWriter writer(folder / "out.gguf");
        writer.declare("w", DType::f32, {2, 2});
        const float w[4] = {};
        writer.write(w, 8);
        EXPECT_THROW(writer.finish(), ContractError);
        EXPECT_THROW(writer.write(w, 16), ContractError);
        EXPECT_THROW(writer.set_u32("late", 1), ContractError);
    }
    EXPECT_EQ(folder.files(), 0u);
    {
        GgufWriter writer(folder / "out.gguf");
        writer.set_u32("k", 1);
        EXPECT_THROW(writer.set_u32("k", 2), ContractError);
        EXPECT_THROW(writer.declare("q", DType::q8_0, {2, 33}), ContractError);
    }
    EXPECT_EQ(folder.files(), 0u);
}

TEST(Gguf, OpenNamesThePath) {
    EXPECT_HAS(input_error([] { GgufFile::open("/nonexistent/x.gguf"); }), "/nonexistent/x.gguf");
    const test::TempFolder folder;
    EXPECT_HAS(input_error([&] { GgufFile::open(folder.path()); }), "directory");
    const std::string empty = folder.write("empty.gguf", "");
    EXPECT_HAS(input_error([&] { GgufFile::open(empty); }), "is empty");
}

TEST(Gguf, MovesKeepTheViews) {
    const test::TempFolder folder;
    const std::string path = folder.write("x.gguf", two_tensors());
    GgufFile first = GgufFile::open(path);
    const GgufFile second = std::move(first);
    float value;
    std::memcpy(&value, static_cast<const std::byte*>(second.find_tensor("w")->view.data) + 4, 4);
    EXPECT_EQ(value, 1.0f);
}

TEST(Gguf, ReadsLlamaCppVocabularies) {
    const std::string folder = test_data() + "/tokenizers/gguf/";
    struct Vocabulary {
        const char* file;
        const char* architecture;
        const char* model;
        std::size_t tokens;
    };
    for (const Vocabulary& v : {Vocabulary{"ggml-vocab-gpt-2.gguf", "gpt2", "gpt2", 50257},
                                Vocabulary{"ggml-vocab-gpt-neox.gguf", "gptneox", "gpt2", 50432},
                                Vocabulary{"ggml-vocab-llama-spm.gguf", "llama", "llama", 32000}}) {
        SCOPED_TRACE(v.file);
        if (!std::filesystem::exists(folder + v.file)) {
            GTEST_SKIP() << "no " << folder << v.file << ": set MILLRACE_DATA";
        }
        const GgufFile file = GgufFile::open(folder + v.file);
        EXPECT_EQ(file.get_string("general.architecture"), v.architecture);
        EXPECT_EQ(file.get_string("tokenizer.ggml.model"), v.model);
        EXPECT_EQ(file.get_strings("tokenizer.ggml.tokens")->size(), v.tokens);
        EXPECT_EQ(file.get_ints("tokenizer.ggml.token_type")->size(), v.tokens);
        EXPECT_TRUE(file.tensors().empty());
    }
}

}  // namespace
}  // namespace mr::formats
