#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "formats/bytes_builder.h"
#include "temp_folder.h"

namespace mr::formats::safetensors_test {
namespace {

std::string file_of(std::string header, std::string_view data) {
    while (header.size() % 8) header += ' ';
    return Bytes().u64(header.size()).raw(header).raw(data).data();
}

std::string parse_error(const std::string& data) {
    return input_error([&] { SafetensorsFile::parse(as_bytes(data), "bad.safetensors"); });
}

TEST(Safetensors, ReadsAFile) {
    // Not in the order of the offsets, with a scalar and an empty tensor.
    const std::string data = file_of(
        R"({"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[24,28]},
            "__metadata__":{"format":"pt"},
            "a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
            "none":{"dtype":"F16","shape":[0,4],"data_offsets":[28,28]},
            "scalar":{"dtype":"I64","shape":[],"data_offsets":[28,36]}})",
        std::string(24, '\1') + std::string(12, '\2'));
    const SafetensorsFile file = SafetensorsFile::parse(as_bytes(data), "x");
    ASSERT_EQ(file.tensors().size(), 4u);
    EXPECT_EQ(file.tensors()[0].name, "a");
    EXPECT_EQ(file.metadata().at("format"), "pt");
    const FileTensor* b = file.find_tensor("b");
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(b->view.shape, (Shape{2, 1}));
    EXPECT_EQ(b->view.dtype, DType::bf16);
    EXPECT_EQ(*static_cast<const char*>(b->view.data), '\2');
    EXPECT_EQ(file.find_tensor("scalar")->view.shape, Shape{1});
    EXPECT_EQ(file.find_tensor("none")->view.bytes(), 0u);
    EXPECT_EQ(file.find_tensor("zzz"), nullptr);
}

TEST(Safetensors, RefusesBadFiles) {
    const auto tensor = [](const char* fields, std::size_t bytes) {
        return file_of(std::string("{\"w\":{") + fields + "}}", std::string(bytes, '\0'));
    };
    constexpr const char* kGood = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
    EXPECT_NO_THROW(SafetensorsFile::parse(as_bytes(tensor(kGood, 8)), "good"));
    struct Bad {
        const char* what;
        std::string data;
        std::vector<const char*> says;
    };
    const std::string two = R"({"v":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"w":{)";
    const std::vector<Bad> bad = {
        {"empty", "", {"header length", "offset 0"}},
        {"short", "abc", {"header length", "3 bytes are left"}},
        {"length past the end", Bytes().u64(100).raw("{}").data(), {"header length = 100"}},
        {"length that wraps", Bytes().u64(~0ull).raw("{}").data(), {"= 18446744073709551615"}},
        {"length 0", Bytes().u64(0).raw("{}").data(), {"header length = 0"}},
        {"not JSON", file_of("{\"a\":", ""), {"header", "not valid JSON at byte"}},
        {"text after JSON", file_of("{} x", ""), {"not valid JSON"}},
        {"not UTF-8", file_of("{\"\xff\": 1}", ""), {"not valid JSON"}},
        {"array", file_of("[]", ""), {"header = array", "not an object"}},
        {"deep",
         file_of("{\"a\":" + std::string(500, '[') + std::string(500, ']') + "}", ""),
         {"nested deeper than 8"}},
        {"key twice", file_of(R"({"a":{"dtype":"U8","dtype":"F32"}})", ""), {"'dtype'", "twice"}},
        {"tensor twice", file_of(R"({"a":{},"a":{}})", ""), {"'a'", "twice"}},
        {"metadata", file_of(R"({"__metadata__":{"k":1}})", ""), {"__metadata__ 'k'"}},
        {"metadata list", file_of(R"({"__metadata__":[]})", ""), {"__metadata__"}},
        {"number", file_of(R"({"w":7})", ""), {"tensor 'w' = 7", "not an object"}},
        {"no name", file_of(R"({"":{}})", ""), {"tensor ''", "name"}},
        {"no dtype", tensor(R"("shape":[2],"data_offsets":[0,8])", 8), {"'w' dtype", "missing"}},
        {"no shape", tensor(R"("dtype":"F32","data_offsets":[0,8])", 8), {"'w' shape", "missing"}},
        {"no offsets", tensor(R"("dtype":"F32","shape":[2])", 8), {"data_offsets", "missing"}},
        {"more", tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1)", 8), {"'w' x"}},
        {"dtype",
         tensor(R"("dtype":"F8_E5M2","shape":[8],"data_offsets":[0,8])", 8),
         {"'w' dtype = F8_E5M2", "BF16"}},
        {"dtype number", tensor(R"("dtype":3,"shape":[8],"data_offsets":[0,8])", 8), {"dtype = 3"}},
        {"shape text",
         tensor(R"("dtype":"F32","shape":["2"],"data_offsets":[0,8])", 8),
         {"[\"2\"]"}},
        {"shape < 0", tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])", 8), {"[-2]"}},
        {"shape 2.0", tensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])", 8), {"[2.0]"}},
        {"shape 1e99",
         tensor(R"("dtype":"F32","shape":[1e99],"data_offsets":[0,8])", 8),
         {"shape"}},
        {"five dims",
         tensor(R"("dtype":"F32","shape":[1,1,1,1,2],"data_offsets":[0,8])", 8),
         {"more than 4"}},
        {"wraps",
         tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])", 8),
         {"shape = [4294967296,4294967296]", "large"}},
        {"zero hides",
         tensor(R"("dtype":"F32","shape":[0,9223372036854775808],"data_offsets":[0,0])", 0),
         {"large"}},
        {"bytes",
         tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])", 8),
         {"holds 8 bytes", "f32 of shape [3] takes 12"}},
        {"order", tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])", 8), {"[8,0]"}},
        {"past the end", tensor(kGood, 7), {"data_offsets = [0,8]", "7 bytes of data"}},
        {"far past the end",
         tensor(
             R"("dtype":"F32","shape":[2],"data_offsets":[18446744073709551600,18446744073709551608])",
             8),
         {"past the end"}},
        {"one offset", tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0])", 8), {"a pair"}},
        {"left over", tensor(kGood, 9), {"data length = 9", "8 bytes that the tensors take"}},
        {"overlap",
         file_of(two + R"("dtype":"U8","shape":[4],"data_offsets":[2,6]}})", "123456"),
         {"tensor 'w' data_offsets[0] = 2", "overlaps"}},
        {"same place",
         file_of(two + R"("dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "1234"),
         {"overlaps"}},
        {"gap",
         file_of(two + R"("dtype":"U8","shape":[2],"data_offsets":[6,8]}})", "12345678"),
         {"data_offsets[0] = 6", "gap"}},
    };
    for (const Bad& file : bad) {
        SCOPED_TRACE(file.what);
        const std::string message = parse_error(file.data);
        EXPECT_HAS(message, "bad.safetensors");
        for (const char* part : file.says) EXPECT_HAS(message, part);
    }
}

TEST(Safetensors, RefusesEveryTruncation) {
    const std::string data =
        file_of(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678");
    EXPECT_NO_THROW(SafetensorsFile::parse(as_bytes(data), "whole"));
    for (std::size_t size = 0; size < data.size(); ++size) parse_error(data.substr(0, size));
}

TEST(Safetensors, WhatIsWrittenIsRead) {
    const test::TempFolder folder;
    const std::vector<float> w = {1, 2, 3, 4, 5, 6};
    const std::vector<std::uint16_t> h = {0x3c00, 0x4000, 0x4200};
    const auto write = [&](const std::string& name) {
        SafetensorsWriter writer(folder / name);
        writer.set_metadata("format", "pt");
        writer.declare("z", DType::f16, {3});
        writer.declare("a", DType::f32, {2, 3});
        writer.write(h.data(), 6);
        writer.write(w.data(), 12);
        writer.write(w.data() + 3, 12);
        writer.finish();
    };
    write("1.safetensors");
    write("2.safetensors");
    EXPECT_EQ(folder.files(), 2u);
    EXPECT_EQ(read_text_file(folder / "1.safetensors"), read_text_file(folder / "2.safetensors"));
    const SafetensorsFile file = SafetensorsFile::open(folder / "1.safetensors");
    ASSERT_EQ(file.tensors().size(), 2u);
    EXPECT_EQ(file.tensors()[0].name, "z");
    EXPECT_EQ(file.tensors()[0].offset % 8, 0u);
    EXPECT_EQ(file.tensors()[0].view.dtype, DType::f16);
    EXPECT_EQ(file.find_tensor("a")->view.shape, (Shape{2, 3}));
    EXPECT_EQ(std::memcmp(file.find_tensor("a")->view.data, w.data(), 24), 0);
    EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST(Safetensors, UnfinishedWritingLeavesNothing) {
    const test::TempFolder folder;
    {
        SafetensorsWriter writer(folder / "x.safetensors");
        writer.declare("w", DType::f32, {2});
        EXPECT_THROW(writer.declare("q", DType::q8_0, {32}), ContractError);
        const float one = 1;
        writer.write(&one, 4);
        EXPECT_THROW(writer.finish(), ContractError);
        EXPECT_THROW(writer.write("123456", 6), ContractError);
    }
    EXPECT_EQ(folder.files(), 0u);
}

class ShardedFolder : public ::testing::Test {
  protected:
    void shard(const std::string& name, const std::string& tensor) {
        folder.write(
            name, file_of("{\"" + tensor + R"(":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                          "ab"));
    }
    void index(const std::string& weight_map) {
        folder.write("model.safetensors.index.json",
                     R"({"metadata":{"total_size":4},"weight_map":)" + weight_map + "}");
    }
    std::string error() {
        return input_error([&] { SafetensorsFile::open(folder.path()); });
    }
    test::TempFolder folder;
};

TEST_F(ShardedFolder, IsRead) {
    shard("model-00001-of-00002.safetensors", "a");
    shard("model-00002-of-00002.safetensors", "b");
    index(R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})");
    const SafetensorsFile file = SafetensorsFile::open(folder.path());
    ASSERT_EQ(file.tensors().size(), 2u);
    EXPECT_HAS(file.find_tensor("b")->file, "model-00002-of-00002.safetensors");
    EXPECT_EQ(*static_cast<const char*>(file.find_tensor("b")->view.data), 'a');
}

TEST_F(ShardedFolder, PrefersTheWholeFile) {
    shard("model.safetensors", "only");
    index(R"({"a":"absent.safetensors"})");
    EXPECT_NE(SafetensorsFile::open(folder.path()).find_tensor("only"), nullptr);
}

TEST_F(ShardedFolder, NamesWhatIsWrong) {
    EXPECT_HAS(error(), "neither model.safetensors nor");
    shard("one.safetensors", "a");
    index(R"({"a":"missing.safetensors"})");
    EXPECT_HAS(error(), "missing.safetensors");
    index(R"({"a":"one.safetensors","c":"one.safetensors"})");
    EXPECT_HAS(error(), "weight_map 'c' = one.safetensors: does not hold this tensor");
    index(R"({"a":7})");
    EXPECT_HAS(error(), "weight_map 'a' = number");
    index("[]");
    EXPECT_HAS(error(), "weight_map");
    index("{}");
    EXPECT_HAS(error(), "weight_map");
    index(R"({"a":"one.safetensors","a":"one.safetensors"})");
    EXPECT_HAS(error(), "twice");
    folder.write("model.safetensors.index.json", "{");
    EXPECT_HAS(error(), "not valid JSON");
    folder.write("model.safetensors.index.json", "[]");
    EXPECT_HAS(error(), "weight_map");
    shard("two.safetensors", "a");
    index(R"({"a":"one.safetensors"})");
    EXPECT_NO_THROW(SafetensorsFile::open(folder.path()));
}

TEST_F(ShardedFolder, RefusesTheSameTensorInTwoShards) {
    folder.write("one.safetensors", file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                             "b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                            "ab"));
    shard("two.safetensors", "a");
    index(R"({"b":"one.safetensors","a":"two.safetensors"})");
    EXPECT_HAS(error(), "tensor 'a': is in two shards");
}

TEST_F(ShardedFolder, NeverLeavesTheFolder) {
    shard("x.safetensors", "a");
    for (const char* name : {"../x.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ".", "",
                             "a\\\\b", "x\\u0000.safetensors"}) {
        SCOPED_TRACE(name);
        index(std::string(R"({"a":")") + name + "\"}");
        EXPECT_HAS(error(), "is not the plain name of a file beside the index");
    }
}

}  // namespace
}  // namespace mr::formats::safetensors_test
