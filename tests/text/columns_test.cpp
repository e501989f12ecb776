#include "text/columns.h"

#include <gtest/gtest.h>

namespace mr::text {
namespace {

TEST(Columns, MostCharactersTakeOne) {
    EXPECT_EQ(columns_of(""), 0u);
    EXPECT_EQ(columns_of("Once upon"), 9u);
    EXPECT_EQ(columns_of("\u00e9\u0416\u03a9\u2591\ufffd"), 5u);  // letters, the shade of a place
}

TEST(Columns, CjkAndEmojiTakeTwo) {
    EXPECT_EQ(columns_of("\u4e2d\u6587"), 4u);
    EXPECT_EQ(columns_of("\u3042\u30ab\uac00\uff21"), 8u);  // kana, hangul, a full-width A
    EXPECT_EQ(columns_of("a\U0001f600b"), 4u);
    EXPECT_EQ(columns_of("\u2705\U0001f680\U0001fae0"), 6u);
    EXPECT_EQ(columns_of("\U00020000\U0002fffd"), 4u);
    EXPECT_EQ(columns_of("\uff71\u303f"), 2u);  // half-width forms take one column
}

TEST(Columns, MarksTakeNone) {
    EXPECT_EQ(columns_of("e\u0301"), 1u);
    EXPECT_EQ(columns_of("\u304b\u3099"), 2u);  // a mark among wide characters
    EXPECT_EQ(columns_of("\u200b\u200d\ufe0f"), 0u);
}

TEST(Columns, BrokenBytesTakeOneEach) {
    EXPECT_EQ(columns_of("\xff"), 1u);
    EXPECT_EQ(columns_of("a\xc3"), 2u);
    EXPECT_EQ(columns_of("\xe4\xb8"), 1u);  // one truncated sequence
}

TEST(Columns, ALineIsCutAtAWholeCharacter) {
    EXPECT_EQ(cut_to_columns("Once upon", 4), "Once");
    EXPECT_EQ(cut_to_columns("Once", 4), "Once");
    EXPECT_EQ(cut_to_columns("Once", 0), "");
    EXPECT_EQ(cut_to_columns("a\u4e2d\u6587", 4), "a\u4e2d");  // half a character does not fit
    EXPECT_EQ(cut_to_columns("e\u0301f", 1), "e\u0301");       // with its mark
}

}  // namespace
}  // namespace mr::text
