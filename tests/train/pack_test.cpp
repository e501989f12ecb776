// Packing texts into a data folder and reading them back, and data folders that were tampered with.
#include "train/pack.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "formats/gguf_writer.h"
#include "temp_folder.h"
#include "text/bpe_train.h"
#include "text/tokenizer.h"
#include "text/tokenizer_gguf.h"
#include "text/tokenizer_json_writer.h"
#include "train/corpus.h"

namespace mr::train {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> some_documents(std::size_t count) {
    std::vector<std::string> out;
    for (std::size_t i = 0; i < count; ++i) {
        std::string text = "Story " + std::to_string(i * 7919 % 1000) + ": the cat";
        for (std::size_t j = 0; j < i % 5; ++j) text += " ran on,\nand the mill went round";
        out.push_back(text + ".");
    }
    return out;
}

class Pack : public testing::Test {
  protected:
    Pack() : documents(some_documents(40)) {
        std::string text;
        for (const std::string& d : documents) {
            text += d + "\n" + std::string(text::kEndOfText) + "\n";
        }
        data = folder.write("stories.txt", text);
        text::BpeTrainer trainer({.vocab = 280}, pool);
        trainer.add(text);
        const text::TokenizerData trained = trainer.train().data;
        fs::create_directory(folder / "tok");
        const auto files = text::huggingface_tokenizer(trained).value();
        folder.write("tok/tokenizer.json", files.tokenizer);
        folder.write("tok/tokenizer_config.json", files.config);
        tokenizer = text::Tokenizer::from_json_file(folder / "tok/tokenizer.json");
    }

    PackOptions options(const std::string& name = "data") const {
        PackOptions out;
        out.data = {data};
        out.tokenizer = folder / "tok";
        out.out = folder / name;
        return out;
    }

    // The documents in a split's ids, after checking the end tokens around them.
    std::vector<std::string> documents_of(const Shards& shards, std::int32_t end) const {
        std::vector<std::int32_t> ids(shards.tokens());
        shards.read(0, ids);
        std::vector<std::string> out;
        if (ids.empty()) return out;
        EXPECT_EQ(ids.front(), end);
        EXPECT_EQ(ids.back(), end);
        std::vector<std::int32_t> document;
        for (std::size_t i = 1; i < ids.size(); ++i) {
            if (ids[i] != end) {
                document.push_back(ids[i]);
            } else {
                out.push_back(tokenizer->decode(document));
                document.clear();
            }
        }
        return out;
    }

    // `what` throws an Error with `says` in it, and leaves `files` files in the folder.
    template <typename What>
    void expect_error(const std::string& says, What&& what) const {
        const std::size_t before = folder.files();
        try {
            what();
            ADD_FAILURE() << "no error about: " << says;
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
        }
        EXPECT_EQ(folder.files(), before) << says;
    }

    test::TempFolder folder;
    ThreadPool pool{2};
    std::vector<std::string> documents;
    std::string data;
    text::Tokenizer::Ptr tokenizer;
};

// Pieces of one document are encoded in parallel: the same ids, and still one document.
TEST_F(Pack, AHugeDocumentIsOne) {
    std::string text = "The first";
    while (text.size() < 700'000)
        text += " word of it's " + std::to_string(text.size()) + "\n, mill";
    const std::string uncut(600'000, 'x');  // it has no place to be cut
    PackOptions wanted = options("huge");
    wanted.data = {folder.write("huge.txt", text + std::string(text::kEndOfText) + uncut)};
    wanted.val = 0;
    const PackResult result = pack(wanted, pool);
    EXPECT_EQ(result.train.documents, 2u);
    EXPECT_EQ(result.train.bytes, text.size() + uncut.size());
    const Dataset set = Dataset::open(folder / "huge");
    std::vector<std::int32_t> ids(set.train.tokens()), want{set.end_token};
    set.train.read(0, ids);
    for (const std::string& document : {text, uncut}) {
        const auto more = tokenizer->encode(document, {.add_special = false});
        want.insert(want.end(), more.begin(), more.end());
        want.push_back(set.end_token);
    }
    EXPECT_TRUE(ids == want);
    // No added token lies across a cut.
    EXPECT_GT(tokenizer->cut_before(text, text.size()), 0u);
    for (const text::AddedToken& token :
         {text::AddedToken{.id = 5, .text = "first word"},
          text::AddedToken{.id = 5, .text = "first", .rstrip = true}}) {
        text::TokenizerData data = tokenizer->data();
        data.added.push_back(token);
        EXPECT_EQ(text::Tokenizer::from_data(data)->cut_before(text, text.size()), 0u);
    }
}

TEST_F(Pack, RoundTrip) {
    PackOptions wanted = options();
    wanted.val_docs = 9;
    const PackResult result = pack(wanted, pool);
    EXPECT_EQ(result.train.documents, 31u);
    EXPECT_EQ(result.val.documents, 9u);
    EXPECT_EQ(result.vocab, 280u);
    EXPECT_EQ(result.bytes_per_token, 2u);

    const Dataset set = Dataset::open(folder / "data");
    set.verify(pool);
    EXPECT_EQ(tokenizer_hash(*set.open_tokenizer()), set.tokenizer_hash);
    EXPECT_EQ(set.vocab, 280u);
    EXPECT_EQ(set.end_token, *tokenizer->eos());
    EXPECT_EQ(set.tokenizer_hash, tokenizer_hash(*tokenizer));
    EXPECT_EQ(set.train.tokens(), result.train.tokens);
    EXPECT_EQ(set.train.stats().documents, 31u);

    const std::vector<std::string> train = documents_of(set.train, set.end_token);
    const std::vector<std::string> val = documents_of(set.val, set.end_token);
    ASSERT_EQ(val.size(), 9u);
    // Whole documents, each in one of the splits, in order.
    std::size_t t = 0, v = 0, train_bytes = 0;
    for (const std::string& document : documents) {
        if (t < train.size() && train[t] == document) {
            ++t;
            train_bytes += document.size();
        } else {
            ASSERT_LT(v, val.size()) << document;
            EXPECT_EQ(val[v++], document);
        }
    }
    EXPECT_EQ(t, train.size());
    EXPECT_EQ(v, val.size());
    EXPECT_EQ(result.train.bytes, train_bytes);

    // Training needs nothing else.
    const auto copy = text::Tokenizer::from_json_file(set.tokenizer_path);
    set.check_tokenizer(*copy, "copy");
    EXPECT_EQ(copy->bos(), tokenizer->bos());
    expect_error("not the tokenizer that",
                 [&] { set.check_tokenizer(*text::Tokenizer::bytes(280), "bytes"); });
    EXPECT_EQ(folder.files(), 3u);  // stories, tok, data: nothing temporary
}

// The tokenizer.json written for a GGUF's vocabulary is the tokenizer that made the shards, also in
// what its hash does not cover.
TEST_F(Pack, WritesTheTokenizerOfAGguf) {
    const auto write = [&](const text::TokenizerData& changed) {
        formats::GgufWriter writer(folder / "tok.gguf");
        text::write_tokenizer(writer, changed);
        writer.finish();
    };
    text::TokenizerData changed = tokenizer->data();
    changed.space_prefix = text::SpacePrefix::always;
    changed.prefix_if_missing = true;
    changed.nfc = changed.ignore_merges = true;
    changed.prefix = {0};
    write(changed);
    PackOptions wanted = options("from-gguf");
    wanted.tokenizer = folder / "tok.gguf";
    (void)pack(wanted, pool);
    const auto packed = Dataset::open(folder / "from-gguf").open_tokenizer();
    const auto original = text::Tokenizer::from_data(changed);
    const std::string words = "The cat<|endoftext|>ran e\xCC\x81";
    EXPECT_NE(original->encode(words), tokenizer->encode(words));
    EXPECT_EQ(packed->encode(words), original->encode(words));

    // A space at the very start alone: tokenizer.json has no name for that in byte-level ones.
    changed.space_prefix = text::SpacePrefix::first;
    write(changed);
    wanted.out = folder / "refused";
    expect_error("cannot be written as tokenizer.json", [&] { (void)pack(wanted, pool); });
}

TEST_F(Pack, TheSameWhateverTheThreadsAndShards) {
    PackOptions wanted = options("a");
    wanted.val = 0.2;
    (void)pack(wanted, pool);
    ThreadPool one(1);
    wanted.out = folder / "b/";
    (void)pack(wanted, one);
    for (const char* name : {"data.json", "train-00000.bin", "val-00000.bin"}) {
        EXPECT_EQ(test::read_all(folder / "a/" + name), test::read_all(folder / "b/" + name));
    }
    wanted.out = folder / "small";
    wanted.shard_tokens = 100;
    const PackResult small = pack(wanted, pool);
    EXPECT_GT(small.train_shards, 3u);
    const Dataset a = Dataset::open(folder / "a"), b = Dataset::open(folder / "b"),
                  c = Dataset::open(folder / "small");
    EXPECT_EQ(a.hash, b.hash);
    EXPECT_NE(a.hash, c.hash);
    EXPECT_EQ(c.train.shards().front().tokens(), 100u);
    EXPECT_EQ(documents_of(a.train, a.end_token), documents_of(c.train, c.end_token));
    EXPECT_EQ(documents_of(a.val, a.end_token), documents_of(c.val, c.end_token));
}

TEST_F(Pack, TheHeldOutDocumentsDependOnTheSeed) {
    std::set<std::vector<std::string>> choices;
    for (const std::uint64_t seed : {0, 1, 2}) {
        PackOptions wanted = options("s" + std::to_string(seed));
        wanted.seed = seed;
        wanted.val = 0.25;
        EXPECT_EQ(pack(wanted, pool).val.documents, 10u);
        const Dataset set = Dataset::open(wanted.out);
        choices.insert(documents_of(set.val, set.end_token));
    }
    EXPECT_EQ(choices.size(), 3u);
    PackOptions tiny = options("tiny");
    tiny.val = 1e-9;  // at least one
    EXPECT_EQ(pack(tiny, pool).val.documents, 1u);
    PackOptions none = options("none");
    none.val = 0;
    EXPECT_EQ(pack(none, pool).val.documents, 0u);
    EXPECT_EQ(Dataset::open(folder / "none").val.tokens(), 0u);
}

TEST_F(Pack, FilesFoldersGlobsAndTheirOwnValidation) {
    fs::create_directories(folder / "books/more");
    fs::create_directories(folder / "books/.hidden");
    folder.write("books/b.txt", "second\n");
    folder.write("books/a.txt", "  first\n");
    folder.write("books/more/c.txt", "third");
    folder.write("books/empty.txt", "");
    folder.write("books/.hidden/x.txt", "no");
    folder.write("books/.x", "no");
    PackOptions wanted = options();
    wanted.data = {folder / "books", folder / "books/a.txt"};  // each file once
    wanted.split = "";
    wanted.val_data = {folder / "books/*.t?t"};
    const PackResult result = pack(wanted, pool);
    EXPECT_EQ(result.files, 4u + 3u);
    const Dataset set = Dataset::open(wanted.out);
    // Without a separator a document is the unchanged file.
    EXPECT_EQ(documents_of(set.train, set.end_token),
              std::vector<std::string>({"  first\n", "second\n", "third"}));
    EXPECT_EQ(documents_of(set.val, set.end_token),
              std::vector<std::string>({"  first\n", "second\n"}));
}

TEST_F(Pack, SpecialTokensInTheTextAreTextUnlessAsked) {
    folder.write("marks.txt", "one<|endoftext|>two");
    PackOptions wanted = options();
    wanted.data = {folder / "marks.txt"};
    wanted.split = "";
    wanted.val = 0;
    (void)pack(wanted, pool);
    const Dataset plain = Dataset::open(wanted.out);
    EXPECT_EQ(documents_of(plain.train, plain.end_token),
              std::vector<std::string>({"one<|endoftext|>two"}));
    wanted.parse_special = wanted.force = true;
    (void)pack(wanted, pool);
    const Dataset parsed = Dataset::open(wanted.out);
    EXPECT_EQ(documents_of(parsed.train, parsed.end_token),
              std::vector<std::string>({"one", "two"}));
}

TEST_F(Pack, BadRequestsSaySoAndLeaveNothing) {
    const auto says = [&](const std::string& wanted, PackOptions changed) {
        expect_error(wanted, [&] { (void)pack(changed, pool); });
    };
    PackOptions o = options();
    o.data = {folder / "no.txt"};
    says("cannot be opened", o);
    o.data = {folder / "no*.txt"};
    says("no file matches", o);
    o = options();
    o.val_docs = 40;
    says("leaves nothing", o);
    o = options();
    o.end_token = "<nope>";
    says("--end = <nope>", o);
    o = options();
    o.tokenizer = folder / "nothing";
    says("not a tokenizer", o);
    o = options();
    o.out = folder / "tok";
    says("has no data.json", o);
    o.force = true;
    says("has no data.json", o);
    o.out = data + "/x";
    says(data + "/x: cannot be made", o);  // not the name of the temporary folder

    folder.write("empty.txt", "");
    folder.write("blank.txt", " \n<|endoftext|>\n\n");
    folder.write("binary.txt", std::string("a\0b", 3));
    fs::create_directory(folder / "nofiles");
    for (const char* name : {"empty.txt", "blank.txt"}) {
        o = options();
        o.data = {folder / name};
        says("contains no text", o);
    }
    o.data = {folder / "nofiles"};
    says("no files", o);
    o.data = {folder / "binary.txt"};
    says("is not text", o);

    (void)pack(options(), pool);
    says("--force", options());
    // Removes what a killed process left, but not what a living one, of any user, is writing.
    fs::create_directories(folder / "data.millrace-partial.2147483647/x");  // above any process id
    fs::create_directories(folder / "data.millrace-partial.1");
    fs::create_directories(folder / "data.millrace-partial.x");
    fs::create_directories(folder / "data.partial.2147483647");  // a person's
    fs::create_directories(folder / "data.old.2147483647");
    o = options();
    o.force = true;
    o.val_docs = 3;
    EXPECT_EQ(pack(o, pool).val.documents, 3u);
    EXPECT_FALSE(fs::exists(folder / "data.millrace-partial.2147483647"));
    EXPECT_TRUE(fs::exists(folder / "data.millrace-partial.1"));
    EXPECT_TRUE(fs::exists(folder / "data.millrace-partial.x"));
    EXPECT_TRUE(fs::exists(folder / "data.partial.2147483647"));
    EXPECT_TRUE(fs::exists(folder / "data.old.2147483647"));
}

// A full disk, simulated by a limit on file sizes: one clear error, no folder.
TEST_F(Pack, AFullDiskLeavesNothing) {
    std::string text;
    for (int i = 0; i < 30000; ++i) text += static_cast<char>('a' + i % 7 * i % 26);
    folder.write("long.txt", text);
    PackOptions o = options();
    o.data = {folder / "long.txt"};
    rlimit old{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
    rlimit less = old;
    less.rlim_cur = 30000;
    const auto before = std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &less), 0);
    expect_error("cannot be written", [&] { (void)pack(o, pool); });
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
    std::signal(SIGXFSZ, before);
    EXPECT_EQ(pack(o, pool).train.documents, 1u);
}

TEST_F(Pack, TamperedFoldersSaySo) {
    PackOptions wanted = options();
    wanted.shard_tokens = 1000;
    (void)pack(wanted, pool);
    const std::string index = folder / "data/data.json";
    const std::string good = test::read_all(index);
    const auto replaced = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        const std::size_t at = text.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        return at == std::string::npos ? text : text.replace(at, from.size(), to);
    };
    const auto says = [&](const std::string& what, const std::string& text) {
        folder.write("data/data.json", text);
        expect_error(what, [&] { (void)Dataset::open(folder / "data"); });
    };
    says("not valid JSON", good.substr(0, 50));
    says("pack the data again", good.substr(0, 50));
    // A depth that once crashed the reader and the writer of the error.
    says("nested deeper than 64",
         replaced("\"vocab\": 280", "\"vocab\": " + std::string(100000, '[')));
    says("nested deeper than 64",
         replaced("\"vocab\": 280",
                  "\"vocab\": " + std::string(100000, '[') + std::string(100000, ']')));
    says("not a JSON object", "[]");
    says("format", replaced("millrace tokens", "other"));
    says("version = 2", replaced("\"version\": 1", "\"version\": 2"));
    says("vocab", replaced("\"vocab\": 280", "\"vocab\": \"x\""));
    says("vocab = 280", replaced("\"vocab\": 280", "\"vocab\": 281"));
    says("end_token", replaced("\"end_token\": 0", "\"end_token\": 280"));
    says("end_token", replaced("\"end_token\": 0", "\"end_token\": -1"));
    const auto flipped = [&](const std::string& after) {  // changes the digit after `after`
        std::string text = good;
        char& digit = text.at(text.find(after) + after.size());
        digit = digit == '1' ? '2' : '1';
        return text;
    };
    says("another tokenizer", flipped("\"tokenizer_hash\": \""));
    says("hexadecimal", replaced("tokenizer_hash\": \"", "tokenizer_hash\": \"x"));
    says("is missing", replaced("\"val\":", "\"other\":"));
    says("tokens", replaced("\"tokens\": 1000", "\"tokens\": 999"));
    says("checksum", flipped("\"checksum\": \""));
    says("name of a file", replaced("train-00000.bin", "../data/train-00000.bin"));
    says("cannot be opened", replaced("train-00000.bin", "train-00009.bin"));
    says("the shards have", replaced("\"tokens\": ", "\"tokens\": 1"));
    folder.write("data/data.json", good);
    const std::string shard = test::read_all(folder / "data/train-00000.bin");
    folder.write("data/train-00000.bin", shard.substr(0, shard.size() - 2));
    expect_error("truncated", [&] { (void)Dataset::open(folder / "data"); });
    folder.write("data/train-00000.bin", shard);
    (void)Dataset::open(folder / "data");
    fs::remove(index);
    expect_error("data pack", [&] { (void)Dataset::open(folder / "data"); });
    expect_error("data pack", [&] { (void)Dataset::open(folder / "nowhere"); });
}

}  // namespace
}  // namespace mr::train
