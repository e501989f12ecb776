#include "text/added_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/error.h"
#include "core/philox.h"
#include "formats/bytes_builder.h"

namespace mr::text {
namespace {

AddedTokens made_of(const std::vector<AddedToken>& tokens) {
    AddedTokens out;
    for (const AddedToken& token : tokens) out.insert(token);
    out.finish();
    return out;
}

// All matches as "begin-end:id ".
std::string matches(const AddedTokens& tokens, std::string_view text, bool special,
                    std::span<const LiteralRange> literal = {}) {
    std::string out;
    AddedTokens::Search search(tokens, text, special, literal);
    for (;;) {
        const AddedTokens::Match match = search.next();
        if (match.id < 0) break;
        out += std::to_string(match.begin) + "-" + std::to_string(match.end) + ":" +
               std::to_string(match.id) + " ";
    }
    return out;
}

// The plain definition: at each place, every token is tried.
std::string tried(const std::vector<AddedToken>& tokens, std::string_view text, bool special,
                  std::span<const LiteralRange> literal) {
    const auto word = [&](std::size_t i) { return text[i] != ' ' && text[i] != '.'; };
    std::string out;
    std::size_t from = 0;
    for (std::size_t pos = 0; pos < text.size();) {
        const AddedToken* best = nullptr;
        for (const AddedToken& token : tokens) {
            if (!text.substr(pos).starts_with(token.text)) continue;
            const bool last = &token == &*std::find_if(tokens.rbegin(), tokens.rend(),
                                                       [&](const AddedToken& other) {
                                                           return other.text == token.text;
                                                       });
            if (!last) continue;
            const bool touched = std::any_of(literal.begin(), literal.end(), [&](LiteralRange r) {
                return r.begin < r.end && r.begin < pos + token.text.size() && r.end > pos;
            });
            if (token.special && (!special || touched)) continue;
            if (!best || token.text.size() > best->text.size()) best = &token;
        }
        std::size_t end = best ? pos + best->text.size() : 0;
        if (!best) {
            ++pos;
            continue;
        }
        if (best->single_word && ((pos > 0 && word(pos - 1)) || (end < text.size() && word(end)))) {
            pos = end;  // it consumes its text, as in Hugging Face's library
            continue;
        }
        std::size_t begin = pos;
        pos = end;  // white space that it takes is searched, too
        while (best->lstrip && begin > from && text[begin - 1] == ' ') --begin;
        if (best->lstrip) begin = std::max(begin, from);
        while (best->rstrip && end < text.size() && text[end] == ' ') ++end;
        if (begin >= end) continue;
        out += std::to_string(begin) + "-" + std::to_string(end) + ":" + std::to_string(best->id) +
               " ";
        from = end;
    }
    return out;
}

TEST(AddedTokens, AreTheLeftmostAndOfThoseTheLongest) {
    const AddedTokens tokens = made_of({{.id = 1, .text = "ab"},
                                        {.id = 2, .text = "abcd"},
                                        {.id = 3, .text = "bcde"},
                                        {.id = 4, .text = "c", .special = true}});
    EXPECT_EQ(matches(tokens, "xabcde", false), "1-5:2 ");
    EXPECT_EQ(matches(tokens, "abcxbcde", true), "0-2:1 2-3:4 4-8:3 ");
    EXPECT_EQ(matches(tokens, "abcxbcde", false), "0-2:1 4-8:3 ");
    const LiteralRange range[] = {{2, 3}};
    EXPECT_EQ(matches(tokens, "cccc", true, range), "0-1:4 1-2:4 3-4:4 ");
    EXPECT_EQ(matches(made_of({}), "abc", true), "");
}

TEST(AddedTokens, AreThoseThatTryingEveryOneFinds) {
    std::size_t found = 0;
    for (std::uint64_t round = 0; round < 4000; ++round) {
        std::uint64_t drawn = 0;
        const auto draw = [&](std::uint32_t below) { return philox(7, round, drawn++)[0] % below; };
        std::vector<AddedToken> tokens;
        for (std::uint32_t i = 0, n = 1 + draw(6); i < n; ++i) {
            AddedToken token{.id = static_cast<std::int32_t>(i)};
            for (std::uint32_t j = 0, size = 1 + draw(5); j < size; ++j) {
                token.text += "ab ."[draw(j == 0 ? 2 : 4)];
            }
            token.special = draw(2) == 0;
            token.lstrip = draw(4) == 0;
            token.rstrip = draw(4) == 0;
            token.single_word = draw(4) == 0;
            tokens.push_back(std::move(token));
        }
        std::string text;
        for (std::uint32_t i = 0, n = draw(40); i < n; ++i) text += "aaabb ."[draw(7)];
        std::vector<LiteralRange> literal;
        for (std::size_t at = draw(10); at < text.size() && draw(3) > 0;) {
            const std::size_t end = std::min(text.size(), at + draw(6));
            literal.push_back({at, end});
            at = end + draw(8);
        }
        for (const bool special : {false, true}) {
            const std::string want = tried(tokens, text, special, literal);
            ASSERT_EQ(matches(made_of(tokens), text, special, literal), want)
                << "round " << round << ": '" << text << "'";
            found += want.empty() ? 0 : 1;
        }
    }
    EXPECT_GT(found, 3000u);
}

// A search that restarts at every byte would take hours for these.
TEST(AddedTokens, TakeTimeAsTheTextIsLong) {
    const std::string as(100000, 'a');
    const std::string text(std::size_t{1} << 20, 'a');
    for (const AddedToken& token :
         {AddedToken{.id = 1, .text = as + "b"}, AddedToken{.id = 1, .text = "b" + as},
          AddedToken{.id = 1, .text = as + "b" + as},
          AddedToken{.id = 1, .text = as, .single_word = true}}) {
        EXPECT_EQ(matches(made_of({token}), text + "c", true), "");
    }
    const std::string ten = matches(made_of({{.id = 1, .text = as}}), text, true);
    EXPECT_EQ(std::count(ten.begin(), ten.end(), ':'), 10);
    std::vector<AddedToken> many;
    for (std::int32_t i = 1; i <= 4000; ++i) {
        many.push_back({.id = i,
                        .text = std::string(static_cast<std::size_t>(i), 'a') + "b",
                        .special = true});
    }
    const LiteralRange range[] = {{0, 1}};
    EXPECT_EQ(matches(made_of(many), text + "b", true, range), "1044576-1048577:4000 ");
}

TEST(AddedTokens, HaveALimitTogether) {
    TokenizerData data;
    data.name = "t.json";
    data.model = TokenizerModel::bytes;
    for (int i = 0; i < 3; ++i) {
        data.tokens.push_back(std::string(std::size_t{6} << 20, static_cast<char>('a' + i)));
        data.types.push_back(TokenType::user_defined);
        data.added.push_back({.id = i, .text = data.tokens.back()});
    }
    EXPECT_HAS(formats::input_error([&] { Tokenizer::from_data(data); }),
               "16 MiB of text together");
}

}  // namespace
}  // namespace mr::text
