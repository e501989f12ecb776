// Checksums of safetensors files: as specified, and every flipped bit is found.
#include "formats/tensor_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/mapped_file.h"
#include "formats/bytes_builder.h"
#include "formats/safetensors.h"
#include "temp_folder.h"

namespace mr::formats::tensor_sum_test {
namespace {

std::string some_bytes(std::size_t count) {
    std::string out(count, '\0');
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<char>((i * 7 + i / 251) % 256);
    return out;
}

std::uint64_t sum_in_parts(const std::string& bytes, std::size_t part) {
    TensorSum sum;
    for (std::size_t at = 0; at < bytes.size(); at += part) {
        sum.add(bytes.data() + at, std::min(part, bytes.size() - at));
    }
    return sum.value();
}

// Values of a program of a few lines in Python, by the description in tensor_sum.h.
TEST(TensorSum, IsAsSpecified) {
    const std::pair<std::size_t, std::uint64_t> known[] = {{0, 0},
                                                           {1, 0x2349f81cf29cb3cb},
                                                           {8, 0xd188990509a8c60e},
                                                           {63, 0xb039da68d97deb85},
                                                           {64, 0xba4c719b42903cc8},
                                                           {65, 0x3e7dda1a44d4769a},
                                                           {kSumPiece, 0xe2feeab4b6213e89},
                                                           {kSumPiece + 1, 0x296930bab80535e3},
                                                           {600000, 0xbdb39a24d4d20da3}};
    for (const auto& [count, sum] : known) {
        const std::string bytes = some_bytes(count);
        EXPECT_EQ(sum_in_parts(bytes, kSumPiece * 9), sum) << count;
        EXPECT_EQ(sum_in_parts(bytes, 97), sum) << count;
    }
}

TEST(TensorSum, NoticesEveryBitAndEveryLength) {
    for (const std::size_t count : {1, 63, 64, 200}) {
        std::string bytes = some_bytes(count);
        const std::uint64_t sum = sum_in_parts(bytes, count);
        for (std::size_t bit = 0; bit < 8 * count; ++bit) {
            bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
            ASSERT_NE(sum_in_parts(bytes, count), sum) << count << " bytes, bit " << bit;
            bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
        }
        // The sign bits of two numbers in one lane, which a product alone would not see.
        if (count == 200) {
            bytes[7] ^= '\x80';
            bytes[64 + 7] ^= '\x80';
            EXPECT_NE(sum_in_parts(bytes, count), sum);
        }
        EXPECT_NE(sum_in_parts(bytes + '\0', count), sum);
        EXPECT_NE(sum_in_parts(std::string(count, '\0'), count),
                  sum_in_parts(std::string(count + 1, '\0'), count));
    }
    std::string long_one = some_bytes(3 * kSumPiece + 5);
    const std::uint64_t sum = sum_in_parts(long_one, 1 << 20);
    std::string swapped = long_one.substr(kSumPiece, kSumPiece) + long_one.substr(0, kSumPiece) +
                          long_one.substr(2 * kSumPiece);
    EXPECT_NE(sum_in_parts(swapped, 1 << 20), sum) << "the order of pieces";
}

class Summed : public testing::Test {
  protected:
    // Tensors of no bytes at the beginning, in the middle and at the end; one of several pieces.
    static constexpr std::int64_t kLong = (kSumPiece * 2 + 1000) / 4;
    void write(const std::string& path, std::size_t part) const {
        SafetensorsWriter writer(path);
        writer.set_metadata("format", "pt");
        writer.declare("none", DType::f32, {0, 3});
        writer.declare("a.weight", DType::bf16, {3, 5});
        writer.declare("between", DType::f16, {0});
        writer.declare("long.weight", DType::f32, {kLong});
        writer.declare("b.bias", DType::f32, {1});
        writer.declare("last", DType::f16, {2, 0});
        const std::string bytes = some_bytes(30 + 4 * kLong + 4);
        for (std::size_t at = 0; at < bytes.size(); at += part) {
            writer.write(bytes.data() + at, std::min(part, bytes.size() - at));
        }
        writer.finish();
    }
    static void load(const std::string& path) {
        const SafetensorsFile file = SafetensorsFile::open(path);
        check_sums(file.tensors(), file.maps());
    }

    const test::TempFolder folder_;
};

TEST_F(Summed, AreWrittenAndTakenOutOfTheMetadata) {
    write(folder_ / "a.safetensors", 1 << 24);
    write(folder_ / "b.safetensors", 7);
    EXPECT_EQ(read_text_file(folder_ / "a.safetensors"), read_text_file(folder_ / "b.safetensors"));
    const SafetensorsFile file = SafetensorsFile::open(folder_ / "a.safetensors");
    EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
    const std::string bytes = some_bytes(30 + 4 * kLong + 4);
    EXPECT_EQ(file.find_tensor("a.weight")->sum, sum_in_parts(bytes.substr(0, 30), 30));
    EXPECT_EQ(file.find_tensor("b.bias")->sum, sum_in_parts(bytes.substr(30 + 4 * kLong), 30));
    EXPECT_EQ(file.find_tensor("between")->sum, 0u);
    EXPECT_NO_THROW(check_sums(file.tensors(), file.maps()));
    EXPECT_NO_THROW(check_sums(file.tensors())) << "through the map";
}

TEST_F(Summed, EveryBitOfTheHeaderAndManyOfTheDataAreRefused) {
    const std::string path = folder_ / "a.safetensors";
    write(path, 1 << 24);
    const std::string good = read_text_file(path);
    const std::size_t data = good.size() - (30 + 4 * kLong + 4);
    const std::string_view header = std::string_view(good).substr(0, data);
    const std::size_t sums = header.find("millrace.sums\":\"") + 16;
    const auto error = [&](std::size_t bit) {
        std::string bad = good;
        bad[bit / 8] ^= static_cast<char>(1 << bit % 8);
        return input_error([&] {
            const SafetensorsFile file = SafetensorsFile::parse(as_bytes(bad), "bad");
            check_sums(file.tensors());
        });
    };
    for (std::size_t bit = 0; bit < 8 * data; ++bit) {
        ASSERT_NE(error(bit), "") << "bit " << bit << " of the header: " << header;
    }
    // A damaged checksum names its tensor, the second of six.
    for (std::size_t bit = 8 * (sums + 17); bit < 8 * (sums + 33); ++bit) {
        const std::string says = error(bit);
        if (says.find("JSON") != std::string::npos) continue;  // a digit became a quote or the like
        ASSERT_NE(says.find("tensor a.weight"), std::string::npos) << says;
    }
    std::mt19937_64 random(7);
    const auto check_at = [&](std::size_t byte) {
        const std::string name = byte < 30 ? "a.weight" : byte < 30 + 4 * kLong ? "long" : "b.bias";
        const std::string says = error(8 * (data + byte) + random() % 8);
        ASSERT_NE(says.find("tensor " + name), std::string::npos) << byte << ": " << says;
    };
    for (int i = 0; i < 300; ++i) check_at(random() % (good.size() - data));
    for (std::size_t byte = 0; byte < 40; ++byte) check_at(byte);
    for (std::size_t byte = 1; byte < 40; ++byte) check_at(good.size() - data - byte);
}

TEST_F(Summed, AFileIsReadPastItsMap) {
    const std::string path = folder_ / "a.safetensors";
    write(path, 1 << 24);
    EXPECT_NO_THROW(load(path));
    std::string bad = read_text_file(path);
    bad[bad.size() - 1000] ^= 1;
    folder_.write("a.safetensors", bad);
    EXPECT_HAS(input_error([&] { load(path); }), "tensor long.weight: is not as it was written");
    // Truncated after it was opened: an error, no SIGBUS.
    write(path, 1 << 24);
    const SafetensorsFile file = SafetensorsFile::open(path);
    std::filesystem::resize_file(path, 1 << 16);
    EXPECT_HAS(input_error([&] { check_sums(file.tensors(), file.maps()); }), "truncated");
}

TEST_F(Summed, FilesWithoutThemAreNotChecked) {
    write(folder_ / "a.safetensors", 1 << 24);
    const std::string all = read_text_file(folder_ / "a.safetensors");
    const auto length = all.size() - (30 + 4 * kLong + 4) - 8;
    const auto without = [&](const std::vector<const char*>& keys) {
        auto header = nlohmann::ordered_json::parse(all.substr(8, length));
        for (const char* key : keys) EXPECT_EQ(header["__metadata__"].erase(key), 1u);
        const std::string text = header.dump();
        std::string data = all.substr(8 + length);
        data[12] ^= 1;
        return folder_.write("b.safetensors", Bytes().u64(text.size()).raw(text).raw(data).data());
    };
    EXPECT_NO_THROW(load(without({"millrace.sums", "millrace.header"})));
    // Half of them is damage, too.
    EXPECT_HAS(input_error([&] { load(without({"millrace.sums"})); }), "header: is not as it was");
    EXPECT_HAS(input_error([&] { load(without({"millrace.header"})); }),
               "header: is not as it was");
}

}  // namespace
}  // namespace mr::formats::tensor_sum_test
