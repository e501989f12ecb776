#include "formats/json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "formats/bytes_builder.h"
#include "sanitized.h"

namespace mr::formats {
namespace {

JsonDocument parse(std::string_view text) { return JsonDocument::parse(text, "f.json"); }
std::string error_of(std::string_view text, JsonLimits limits = {}) {
    return input_error([&] { JsonDocument::parse(text, "f.json", "", limits); });
}

TEST(Json, IsStrict) {
    const auto deep = JsonDocument::parse(R"({"a":[1,{"a":2}]})", "f", "", {.depth = 3});
    EXPECT_EQ(deep.root()["a"][1]["a"].get<int>(), 2);
    EXPECT_HAS(error_of("[[[1]]]", {.depth = 2}), "f.json: JSON is nested deeper than 2");
    EXPECT_HAS(
        input_error([] { JsonDocument::parse(R"({"a":1,"b":{"a":1},"a":2})", "f", "part"); }),
        "f: part = 'a'");
    for (const char* text :
         {"", "[1e999]", "[1] [2]", "[1", "{\"a\"}", "nul", "\"\xff\"", "[01]"}) {
        EXPECT_HAS(error_of(text), "not valid JSON") << text;
        EXPECT_EQ(error_of(text).find("json.exception"), std::string::npos) << error_of(text);
    }
    for (const char* opening : {"[", "{\"a\":"}) {
        std::string text;
        for (int i = 0; i < 100000; ++i) text += opening;
        EXPECT_HAS(error_of(text), "deeper than 64");
    }
}

TEST(Json, OfRepeatedKeysTheLastIsMeantWhereTheyAreAllowed) {
    const auto document = JsonDocument::parse(R"([{"b":1,"a":2,"b":3,"b":4,"c":5,"a":6},7])", "f",
                                              "", {.repeated_keys = true});
    EXPECT_EQ(document.root().dump(), R"([{"a":6,"b":4,"c":5},7])");
}

TEST(Json, DigitsBeyondADoubleAreKept) {
    const char* const kept[] = {"18446744073709551616",
                                "123456789012345678901234567890.25",
                                "-0.1000000000000000000001",
                                "1.234567890123456789e+300",
                                "1e-400",
                                "3.141592653589793238462643"};
    for (const char* text : kept) {
        const auto document = parse(fmt::format(R"({{"b": [{}, "x"], "a": {}}})", text, text));
        const JsonValue value = document.root()["b"][0];
        EXPECT_TRUE(value.is_number() && !value.is_number_integer()) << text;
        EXPECT_EQ(value.get<double>(), nlohmann::json::parse(text).get<double>());
        EXPECT_EQ(document.root().dump(), fmt::format(R"({{"a":{},"b":[{},"x"]}})", text, text));
        EXPECT_EQ(document.root()["b"][1].text(), "x");
        EXPECT_EQ(document.root().items_in_file_order()[0].key, "b");
        EXPECT_EQ(parse(text).root().shown(5), std::string(text).substr(0, 5) + "...");
    }
    // The shortest digits of a double say the same as these.
    for (const char* text : {"0.1", "1.50000000000000000000", "1e3", "3.141592653589793", "-2E-7",
                             "1.7976931348623157e308", "0.00000000000000000000e5"}) {
        const auto document = parse(text);
        EXPECT_EQ(document.root().dump(), nlohmann::json::parse(text).dump()) << text;
        EXPECT_EQ(document.root().get<double>(), nlohmann::json::parse(text).get<double>());
    }
}

TEST(Json, ValuesAreWhatTheTextSays) {
    const auto document = parse(
        R"({"z": [null, true, -5, 7, 18446744073709551615, 2.5, "a\u0000b\u00e9", {}, []], "": 1})");
    const JsonValue root = document.root();
    ASSERT_TRUE(root.is_object());
    ASSERT_EQ(root.size(), 2u);
    EXPECT_EQ(root[""].get<int>(), 1);
    EXPECT_TRUE(root["missing"].is_null());
    EXPECT_FALSE(root.contains("missing"));
    EXPECT_FALSE(root["z"].find("z"));  // a list has no members
    const JsonValue list = root["z"];
    ASSERT_EQ(list.size(), 9u);
    EXPECT_TRUE(list[0].is_null());
    EXPECT_TRUE(list[1].get<bool>());
    EXPECT_EQ(list[2].get<int>(), -5);
    EXPECT_TRUE(list[2].is_number_integer() && !list[2].is_number_unsigned());
    EXPECT_EQ(list[3].get<double>(), 7.0);
    EXPECT_TRUE(list[3].is_integer_in(7, 7) && !list[3].is_integer_in(8, 9));
    EXPECT_EQ(list[4].get<std::uint64_t>(), UINT64_MAX);
    EXPECT_FALSE(list[4].is_integer_in(INT64_MIN, INT64_MAX));
    EXPECT_EQ(list[5].get<double>(), 2.5);
    EXPECT_TRUE(list[5].is_number() && !list[5].is_number_integer());
    EXPECT_EQ(list[6].text(), std::string_view("a\0b\xC3\xA9", 5));
    EXPECT_TRUE(list[7].is_object() && list[7].empty());
    EXPECT_TRUE(list[8].is_array() && list[8].empty());
    std::size_t seen = 0;
    for (const JsonValue value : list) seen += value.is_number() ? 1 : 0;
    EXPECT_EQ(seen, 4u);
    EXPECT_THROW(list[9], ContractError);
    EXPECT_THROW(list[0].text(), ContractError);
    EXPECT_TRUE(parse("3").root().is_number());
    EXPECT_TRUE(JsonDocument().root().is_null());
}

TEST(Json, MembersComeByKeyOrAsInTheFile) {
    const auto document = parse(R"({"b": 1, "": 2, "a": {"y": 3, "x": 4}, "c": 5})");
    std::string by_key, by_place;
    for (const auto& [key, value] : document.root().items()) by_key += std::string(key) + ",";
    for (const auto& item : document.root().items_in_file_order()) {
        by_place += std::string(item.key) + ",";
    }
    EXPECT_EQ(by_key, ",a,b,c,");
    EXPECT_EQ(by_place, "b,,a,c,");
    EXPECT_EQ(document.root()["a"]["x"].get<int>(), 4);
}

// Hashes in existing checkpoints depend on this text.
TEST(Json, DumpsAsTheLibraryDoes) {
    const char* text =
        R"({"b": [1, -2, 2.0, 1e-05, 3.25e+30, 0.1, true, null], "a": "é\n\"\\\u0001",
                           "c": {"z": {}, "y": []}})";
    EXPECT_EQ(parse(text).root().dump(), nlohmann::json::parse(text).dump());
}

TEST(Json, ShowsNoMoreThanAMessageHolds) {
    EXPECT_EQ(parse(R"({"a": [1, "x"]})").root().shown(), R"({"a":[1,"x"]})");
    std::string wide = "[0";
    for (int i = 0; i < 100000; ++i) wide += ",0";
    const auto list = parse(wide + "]");
    EXPECT_EQ(list.root().shown(5), "[0,0,...");
    std::string accents;
    for (int i = 0; i < 300; ++i) accents += "\xC3\xA9";
    const auto text = parse("\"" + accents + "\"");
    EXPECT_EQ(text.root().shown(10), "\"" + accents.substr(0, 8) + "...");
}

TEST(Json, CountsWhatAFileHolds) {
    EXPECT_EQ(parse("[1,2,3]").root().size(), 3u);
    EXPECT_HAS(error_of("[1,2,[3]]", {.values = 3}), "has more than the 3 values");
    EXPECT_HAS(error_of(R"({"a":1,"b":2})", {.values = 3}), "has more than the 3 values");
    if (test::sanitized()) return;  // takes ten seconds
    // 60 MB of [] are 20 million values, more than the default limit.
    std::string empty = "[[]";
    while (empty.size() < (60u << 20)) empty += ",[]";
    EXPECT_HAS(error_of(empty + "]"), "values that a JSON file may have");
}

// What waits for an answer is counted by this.
TEST(Json, BytesAreOfTheMemoryItTakes) {
    EXPECT_LT(formats::JsonDocument().bytes(), 200u);
    std::string lists = "[[]";
    for (int i = 1; i < 10000; ++i) lists += ",[]";
    const std::size_t values = parse(lists + "]").bytes();
    EXPECT_GE(values, 10001u * 16);
    EXPECT_LE(values, 2 * 10001u * 16 + 200);
    const std::size_t text = parse("\"" + std::string(10000, 'a') + "\"").bytes();
    EXPECT_GE(text, 10001u);
    EXPECT_LE(text, 2 * 10001u + 200);
}

// Must take neither the memory of a set of seen keys nor quadratic time.
TEST(Json, FindsAKeyTwiceAmongMany) {
    std::string text = "{";
    for (std::uint64_t i = 0; i < 60000; ++i)
        text += "\"k" + std::to_string(i * 7919 % 60000) + "\":1,";
    EXPECT_EQ(parse(text + "\"k\":1}").root().size(), 60001u);
    EXPECT_HAS(error_of(text + "\"k4711\":1}"), "'k4711': JSON has this key twice");
    const auto document = parse(text + "\"k\":1}");
    for (int i = 0; i < 60000; ++i) {
        ASSERT_TRUE(document.root().contains("k" + std::to_string(i)));
    }
}

}  // namespace
}  // namespace mr::formats
