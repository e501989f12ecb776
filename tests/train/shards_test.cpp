// The reader of token shards trusts nothing.
#include "train/shards.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/error.h"
#include "shard_files.h"
#include "temp_folder.h"

namespace mr::train {
namespace {

// Checks that `what` throws an input Error with `says` in it.
template <typename What>
void expect_error(const std::string& says, What&& what) {
    try {
        what();
        ADD_FAILURE() << "no error about " << says;
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input);
        EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
}

void expect_parse_error(const std::string& says, const std::string& bytes) {
    expect_error(says, [&] { (void)Shard::parse(std::as_bytes(std::span(bytes)), "x.bin"); });
}

TEST(Shard, RoundTripOfBothWidths) {
    const std::vector<std::int32_t> ids = {0, 1, 255, 256, 65534, 65535, 7};
    for (const std::uint32_t width : {2u, 4u}) {
        const std::uint32_t vocab = 65536;
        const ShardBytes file(ids, vocab, width);
        EXPECT_EQ(file.text.size(), kShardHeaderBytes + width * ids.size());
        const Shard shard = Shard::parse(file.bytes(), "x.bin");
        EXPECT_EQ(shard.tokens(), ids.size());
        EXPECT_EQ(shard.header().vocab, vocab);
        EXPECT_EQ(shard.header().tokenizer_hash, 42u);
        shard.verify();
        std::vector<std::int32_t> out(ids.size(), -1);
        shard.read(0, out);
        EXPECT_EQ(out, ids);
        std::vector<std::int32_t> part(3);
        shard.read(4, part);
        EXPECT_EQ(part, std::vector<std::int32_t>({65534, 65535, 7}));
        EXPECT_THROW(shard.read(5, part), ContractError);
        EXPECT_THROW(shard.read(~std::uint64_t{0}, part), ContractError);
    }
    const ShardBytes wide({70000, 2147483646}, 2147483647, 4);
    std::vector<std::int32_t> out(2);
    Shard::parse(wide.bytes(), "x.bin").read(0, out);
    EXPECT_EQ(out[1], 2147483646);
}

TEST(Shard, TheFileOnDisk) {
    const test::TempFolder folder;
    const ShardBytes file({5, 6, 7});
    const std::string path = folder.write("train-00000.bin", file.text);
    std::vector<Shard> shards;
    shards.push_back(Shard::open(path));  // moved with its map
    const Shards all(std::move(shards), {});
    std::vector<std::int32_t> out(3);
    all.read(0, out);
    EXPECT_EQ(out, std::vector<std::int32_t>({5, 6, 7}));
    all.shards().front().verify();
    expect_error("cannot be opened", [&] { (void)Shard::open(folder / "no.bin"); });
    folder.write("empty.bin", "");
    expect_error("is empty", [&] { (void)Shard::open(folder / "empty.bin"); });
}

TEST(Shard, AFileThatIsCutWhileItIsReadSaysSo) {
    const test::TempFolder folder;
    const std::vector<std::int32_t> ids(50000, 7);
    const std::string path = folder.write("train-00000.bin", ShardBytes(ids).text);
    const Shard shard = Shard::open(path);
    shard.verify();
    std::vector<std::int32_t> out(30000);  // in several pieces
    shard.read(20000, out);
    EXPECT_EQ(out, std::vector<std::int32_t>(30000, 7));
    std::filesystem::resize_file(path, kShardHeaderBytes + 2 * 40000 + 1);
    shard.read(10000, out);  // still readable
    expect_error("train-00000.bin: offset", [&] { shard.read(10001, out); });
    expect_error("was truncated while in use", [&] { shard.verify(); });
}

// The layout is fixed, since files already exist.
TEST(Shard, TheBytesOfTheHeader) {
    const std::string bytes = shard_header_bytes(
        {2, 0x01020304, 0x1122334455667788ull, 0xA1A2A3A4A5A6A7A8ull, 0xB1B2B3B4B5B6B7B8ull});
    const std::string expected =
        std::string(
            "MRTOKENS\x01\0\0\0\x02\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11\x04\x03\x02\x01"
            "\0\0\0\0\xA8\xA7\xA6\xA5\xA4\xA3\xA2\xA1\xB8\xB7\xB6\xB5\xB4\xB3\xB2\xB1",
            48) +
        std::string(16, '\0');
    EXPECT_EQ(bytes, expected);
    EXPECT_EQ(fnv1a({}), kFnvStart);
    // FNV-1a's published value for "a".
    EXPECT_EQ(fnv1a(std::as_bytes(std::span("a", 1))), 0xAF63DC4C8601EC8Cull);
}

TEST(Shard, BadHeadersSaySo) {
    const ShardBytes good({1, 2, 3});
    const auto with = [&](std::size_t at, char value) {
        std::string bytes = good.text;
        bytes[at] = value;
        return bytes;
    };
    expect_parse_error("truncated", good.text.substr(0, 63));
    expect_parse_error("size = 0", "");
    expect_parse_error("magic", with(0, 'X'));
    expect_parse_error("version = 2", with(8, 2));
    expect_parse_error("bytes per token = 3", with(12, 3));
    expect_parse_error("bytes per token = 0", with(12, 0));
    expect_parse_error("tokens = 4", with(16, 4));
    expect_parse_error("truncated", with(23, static_cast<char>(0x80)));  // 2^63 tokens: 2 x wraps
    expect_parse_error("vocab", with(26, 1));  // 2^16 and more, in 2 bytes
    expect_parse_error("reserved bytes", with(28, 1));
    expect_parse_error("reserved bytes", with(50, 1));
    expect_parse_error("truncated", good.text.substr(0, good.text.size() - 1));
    expect_parse_error("truncated", good.text.substr(0, good.text.size() - 2));
    expect_parse_error("damaged", good.text + "xx");
    expect_parse_error("vocab = 0", ShardBytes({}, 0).text);
    expect_parse_error("vocab", ShardBytes({}, 0x80000001u, 4).text);
}

TEST(Shard, IdsOutsideTheVocabularyAreFoundWhenRead) {
    const ShardBytes file({1, 2, 300, 3}, 300);
    const Shard shard = Shard::parse(file.bytes(), "x.bin");
    std::vector<std::int32_t> out(2);
    shard.read(0, out);
    expect_error("x.bin: token 2 = 300", [&] { shard.read(1, out); });
    const ShardBytes wide({1, -1}, 300, 4);
    expect_error("token 1 = 4294967295", [&] { Shard::parse(wide.bytes(), "x.bin").read(0, out); });
}

TEST(Shard, DamageIsFoundByTheChecksum) {
    ShardBytes file({1, 2, 3, 4});
    file.text[kShardHeaderBytes + 2] ^= 1;
    expect_error("checksum", [&] { Shard::parse(file.bytes(), "x.bin").verify(); });
}

// The seeds of the fuzzer: good ones are read to their end, bad ones give an error.
TEST(Shard, TheFuzzersSeeds) {
    int good = 0, bad = 0;
    const std::string corpus = std::string(MR_SOURCE_DIR) + "/tests/fuzz/corpus/shards";
    for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
        const std::string name = entry.path().filename().string();
        const auto read = [&] {
            const Shard shard = Shard::open(entry.path().string());
            std::vector<std::int32_t> ids(shard.tokens());
            shard.read(0, ids);
            shard.verify();
        };
        if (name.starts_with("good")) {
            ++good;
            EXPECT_NO_THROW(read()) << name;
        } else {
            ++bad;
            EXPECT_THROW(read(), Error) << name;
        }
    }
    EXPECT_GE(good, 4);
    EXPECT_GE(bad, 14);
}

}  // namespace
}  // namespace mr::train
