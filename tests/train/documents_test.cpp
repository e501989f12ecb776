// Windows of whole documents: their starts and content, and that nothing is lost.
#include "train/documents.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"
#include "shard_files.h"
#include "train/batches.h"

namespace mr::train {
namespace {

using Ids = std::vector<std::int32_t>;
constexpr std::int32_t kEnd = 9;

std::vector<Ids> windows_of(const Ids& data, std::int64_t seq, std::int64_t block,
                            std::optional<std::int32_t> begin = {}) {
    const ShardBytes a(
        Ids(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(data.size() / 2))),
        b(Ids(data.begin() + static_cast<std::ptrdiff_t>(data.size() / 2), data.end()));
    const Shards shards = shards_of({&a, &b});
    const DocumentWindows windows(shards, seq, block, kEnd, begin);
    std::vector<Ids> out;
    for (std::uint64_t w = 0; w < windows.count(); ++w) {
        out.emplace_back(static_cast<std::size_t>(seq), -1);
        windows.read(w, out.back());
    }
    return out;
}

TEST(DocumentWindows, DocumentsBeginAtBlocksAndAreFilled) {
    // The split begins with an end token; one document is empty.
    const Ids data{9, 1, 2, 9, 9, 3, 4, 5, 6, 9, 7, 9, 8, 8, 8, 9, 1, 9};
    EXPECT_EQ(windows_of(data, 8, 4),
              (std::vector<Ids>{
                  {1, 2, 9, 9, 3, 4, 5, 6}, {3, 4, 5, 6, 9, 9, 9, 9}, {7, 9, 9, 9, 8, 8, 8, 9}}));
    // What fills no window at the end is dropped: here the last document.
    EXPECT_EQ(windows_of(data, 4, 4).size(), 6u);
    EXPECT_EQ(windows_of(data, 4, 4).back(), (Ids{1, 9, 9, 9}));
}

TEST(DocumentWindows, ALongDocumentGoesOn) {
    Ids data{9};
    for (std::int32_t i = 0; i < 16; ++i) data.push_back(100 + i);
    data.push_back(9);  // a third window would have only its end
    for (const std::int32_t id : {1, 2, 9, 3, 9}) data.push_back(id);
    EXPECT_EQ(windows_of(data, 8, 4), (std::vector<Ids>{{100, 101, 102, 103, 104, 105, 106, 107},
                                                        {108, 109, 110, 111, 112, 113, 114, 115},
                                                        {9, 9, 9, 9, 1, 2, 9, 9}}));
}

// The token has the id of the end token, as in tokenizers of `millrace tokenizer train`, but
// another role: given, and only at the start of documents.
TEST(DocumentWindows, DocumentsBeginWithAGivenToken) {
    const Ids data{9, 1, 2, 9, 9, 3, 4, 5, 6, 9, 7, 9, 8, 8, 8, 9, 1, 9};
    EXPECT_EQ(windows_of(data, 8, 4, kEnd), (std::vector<Ids>{{~9, 1, 2, 9, ~9, 3, 4, 5},
                                                              {~9, 3, 4, 5, 6, 9, 9, 9},
                                                              {~9, 7, 9, 9, ~9, 8, 8, 8},
                                                              {~9, 8, 8, 8, 9, 9, 9, 9}}));
    // A document that continues has it only at its start.
    const Ids one{9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 9};
    EXPECT_EQ(windows_of(one, 4, 2, kEnd),
              (std::vector<Ids>{{~9, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, ~9, 2}, {~9, 2, 9, 9}}));
    // Blocks of one token.
    EXPECT_EQ(windows_of({9, 1, 9, 2, 3, 9}, 2, 1, kEnd),
              (std::vector<Ids>{{~9, 1}, {9, ~9}, {~9, 2}, {3, 9}}));
}

TEST(DocumentWindows, WithoutAnEndTheLastDocumentIsFilled) {
    EXPECT_EQ(windows_of({1, 2, 9, 3}, 4, 2), (std::vector<Ids>{{1, 2, 9, 9}}));
    EXPECT_EQ(windows_of({1, 2, 3}, 4, 2), (std::vector<Ids>{{1, 2, 3, 9}}));
    EXPECT_TRUE(windows_of({9, 9, 9, 9, 9, 9}, 2, 2).empty());
}

// Every document that fits into a window is whole in one, for any lengths.
TEST(DocumentWindows, NoDocumentIsLost) {
    Ids data{kEnd};
    std::vector<Ids> documents;
    for (std::int32_t d = 0; d < 300; ++d) {
        Ids document;
        for (std::int32_t i = 0; i < 1 + d * d % 31; ++i) document.push_back(1000 + d);
        data.insert(data.end(), document.begin(), document.end());
        data.push_back(kEnd);
        documents.push_back(document);
    }
    const std::vector<Ids> windows = windows_of(data, 32, 4);
    std::vector<bool> whole(documents.size());
    for (const Ids& window : windows) {
        for (std::size_t first = 0; first < window.size(); first += 4) {
            const std::int32_t id = window[first];
            if (id == kEnd || (first > 0 && window[first - 1] == id)) continue;
            // A document begins: the padding before it ends here.
            if (first > 0) {
                EXPECT_EQ(window[first - 1], kEnd);
            }
            const auto d = static_cast<std::size_t>(id - 1000);
            std::size_t length = 0;
            while (first + length < window.size() && window[first + length] == id) ++length;
            if (first + length < window.size()) {
                EXPECT_EQ(length, documents[d].size());
                EXPECT_EQ(window[first + length], kEnd);
                whole[d] = true;
            } else if (length == documents[d].size()) {
                whole[d] = true;  // except for its end
            }
        }
    }
    int lost = 0;
    for (const bool seen : whole) lost += !seen;
    EXPECT_LE(lost, 8);  // of the last window, which is not full
    for (std::size_t d = 0; d + 8 < whole.size(); ++d) EXPECT_TRUE(whole[d]) << d;
}

TEST(DocumentBatches, CopiesStandSideBySide) {
    Ids data{kEnd};
    for (std::int32_t d = 0; d < 20; ++d) {
        for (const std::int32_t id : {100 + d, 200 + d, 300 + d, kEnd}) data.push_back(id);
    }
    const ShardBytes file(data);
    const Shards shards = shards_of({&file});
    const BatchOptions options{
        .batch = 4, .seq = 8, .seed = 3, .block = 4, .end = kEnd, .copies = 2};
    const Batches batches(shards, options);
    EXPECT_EQ(batches.windows(), 10u);
    EXPECT_EQ(batches.row_tokens(), 8);
    EXPECT_EQ(batches.steps_per_epoch(), 5u);
    std::vector<int> seen(20);
    for (std::uint64_t step = 0; step < 5; ++step) {
        Ids ids(batches.batch_ids());
        ASSERT_EQ(batches.read(step, ids), 4);
        for (std::size_t row = 0; row < 4; row += 2) {
            const auto at = ids.begin() + static_cast<std::ptrdiff_t>(row * 8);
            EXPECT_TRUE(std::equal(at, at + 8, at + 8));
            ++seen[static_cast<std::size_t>(*at - 100)];
        }
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 10);  // each window once
    BatchOptions long_ones = options;
    long_ones.seq = 800;
    EXPECT_FALSE(Batches::has_windows(shards, long_ones));
    EXPECT_THROW(Batches(shards, long_ones), Error);
}

}  // namespace
}  // namespace mr::train
