// Reads data.json and the files that it names.
#include <fmt/format.h>

#include <atomic>
#include <charconv>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/output_folder.h"
#include "formats/json.h"
#include "text/tokenizer.h"
#include "train/shards.h"

namespace mr::train {
namespace {

namespace fs = std::filesystem;
using formats::JsonValue;

constexpr std::size_t kMaxIndexBytes = 64u << 20;
constexpr std::uint64_t kMaxTokens = std::uint64_t{1} << 56;  // sums of these do not wrap

class IndexReader {
  public:
    explicit IndexReader(const std::string& folder)
        : folder_(folder), path_((fs::path(folder) / kDataIndexName).string()) {
        std::error_code code;
        if (!fs::exists(path_, code)) {
            if (const std::string old = moved_away(folder); !old.empty()) {
                throw Error::input(
                    {.file = folder,
                     .problem = fmt::format("'data pack --force' was killed while it replaced it, "
                                            "and left the old data in {}",
                                            old),
                     .remedy = "rename that folder, or pack the data again"});
            }
            throw Error::input(
                {.file = folder,
                 .problem = fmt::format("is not a data folder: it has no {}", kDataIndexName),
                 .remedy = "make one with 'millrace data pack'"});
        }
        const std::string text = read_text_file(path_, kMaxIndexBytes);
        try {
            document_ = formats::JsonDocument::parse(text, path_);
        } catch (const Error& error) {
            throw fail("", nullptr, error.info().problem);
        }
        root_ = document_.root();
        if (!root_.is_object()) throw fail("", nullptr, "is not a JSON object");
    }

    Dataset read() const {
        if (text(root_, "format") != kDataFormat) {
            throw fail("format", root_["format"], fmt::format("is not '{}'", kDataFormat));
        }
        if (number(root_, "version", ~0u) != kShardVersion) {
            throw fail("version", root_["version"],
                       fmt::format("is not {}, the one this program reads", kShardVersion));
        }
        Dataset data;
        data.folder = folder_;
        data.tokenizer_path = (fs::path(folder_) / kDataTokenizerName).string();
        data.vocab = static_cast<std::uint32_t>(number(root_, "vocab", 0x7FFFFFFF));
        data.end_token = static_cast<std::int32_t>(number(root_, "end_token", 0x7FFFFFFF));
        if (static_cast<std::uint32_t>(data.end_token) >= data.vocab) {
            throw fail("end_token", root_["end_token"], "is not below vocab");
        }
        data.tokenizer_hash = hex(root_, "tokenizer_hash");
        data.hash = kFnvStart;
        data.train = split("train", data);
        data.val = split("val", data);
        if (data.train.tokens() == 0) {
            throw fail("train.tokens", nullptr, "is 0: there is nothing to train on");
        }
        return data;
    }

  private:
    Error fail(std::string field, JsonValue value, std::string problem) const {
        return Error::input({.file = path_,
                             .field = std::move(field),
                             .value = value.is_null() ? "" : value.shown(99),
                             .problem = std::move(problem),
                             .remedy = "pack the data again"});
    }

    JsonValue member(JsonValue from, const char* key) const {
        const auto found = from.find(key);
        if (!found) throw fail(key, nullptr, "is missing");
        return *found;
    }
    std::string text(JsonValue from, const char* key) const {
        const JsonValue value = member(from, key);
        if (!value.is_string()) throw fail(key, value, "is not a string");
        return value.get<std::string>();
    }
    std::uint64_t number(JsonValue from, const char* key, std::uint64_t most) const {
        const JsonValue value = member(from, key);
        if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most) {
            throw fail(key, value, fmt::format("is not a number from 0 to {}", most));
        }
        return value.get<std::uint64_t>();
    }
    std::uint64_t hex(JsonValue from, const char* key) const {
        const std::string value = text(from, key);
        std::uint64_t out = 0;
        const auto [end, code] =
            std::from_chars(value.data(), value.data() + value.size(), out, 16);
        if (code != std::errc{} || end != value.data() + value.size()) {
            throw fail(key, member(from, key), "is not a hexadecimal number");
        }
        return out;
    }

    Shards split(const char* name, Dataset& data) const {
        const JsonValue from = member(root_, name);
        if (!from.is_object()) throw fail(name, from, "is not an object");
        const SplitStats stats{number(from, "documents", kMaxTokens),
                               number(from, "bytes", kMaxTokens),
                               number(from, "tokens", kMaxTokens)};
        const JsonValue list = member(from, "shards");
        if (!list.is_array()) throw fail(fmt::format("{}.shards", name), list, "is not an array");
        std::vector<Shard> shards;
        std::uint64_t tokens = 0;
        for (const JsonValue entry : list) {
            if (!entry.is_object()) throw fail("shards", entry, "is not an object");
            shards.push_back(shard(entry, data));
            tokens += shards.back().tokens();
            const std::string part =
                fmt::format("{} {:x};", shards.back().tokens(), shards.back().header().checksum);
            data.hash = fnv1a(std::as_bytes(std::span(part)), data.hash);
        }
        if (tokens != stats.tokens) {
            throw fail(fmt::format("{}.tokens", name), from["tokens"],
                       fmt::format("the shards have {}", tokens));
        }
        return {std::move(shards), stats};
    }

    Shard shard(JsonValue entry, const Dataset& data) const {
        const std::string file = text(entry, "file");
        // Only a plain name: an index must not lead out of its folder.
        if (file.empty() || file.starts_with('.') || file.find('/') != std::string::npos) {
            throw fail("file", entry["file"], "is not the name of a file in this folder");
        }
        Shard shard = Shard::open((fs::path(folder_) / file).string());
        const ShardHeader& header = shard.header();
        const auto differ = [&](const char* field, std::string found, std::string wanted) {
            return Error::input({.file = shard.name(),
                                 .field = field,
                                 .value = std::move(found),
                                 .problem = fmt::format("{} says {}", kDataIndexName, wanted),
                                 .remedy = "it is from other data; pack the data again"});
        };
        if (header.tokenizer_hash != data.tokenizer_hash) {
            throw differ(
                "tokenizer hash", fmt::format("{:016x}", header.tokenizer_hash),
                fmt::format("{:016x}: packed with another tokenizer", data.tokenizer_hash));
        }
        if (header.vocab != data.vocab) {
            throw differ("vocab", fmt::format("{}", header.vocab), fmt::format("{}", data.vocab));
        }
        if (const auto tokens = number(entry, "tokens", kMaxTokens); header.tokens != tokens) {
            throw differ("tokens", fmt::format("{}", header.tokens), fmt::format("{}", tokens));
        }
        if (const auto checksum = hex(entry, "checksum"); header.checksum != checksum) {
            throw differ("checksum", fmt::format("{:016x}", header.checksum),
                         fmt::format("{:016x}", checksum));
        }
        return shard;
    }

    std::string folder_, path_;
    formats::JsonDocument document_;
    JsonValue root_;
};

}  // namespace

std::uint64_t tokenizer_hash(const text::Tokenizer& tokenizer) {
    const text::TokenizerData& data = tokenizer.data();
    std::uint64_t hash = kFnvStart;
    const auto add = [&](std::string_view bytes) {  // with its length: "ab" "c" is not "a" "bc"
        const std::string length = fmt::format("{}:", bytes.size());
        hash = fnv1a(std::as_bytes(std::span(length)), hash);
        hash = fnv1a(std::as_bytes(std::span(bytes)), hash);
    };
    add(tokenizer.kind());
    for (const std::string& token : data.tokens) add(token);
    // SentencePiece's merges follow from its tokens, and some files lack them.
    if (data.model != text::TokenizerModel::byte_level_bpe) return hash;
    for (const text::Merge& m : data.merges) add(fmt::format("{} {}", m.left, m.right));
    return hash;
}

Dataset Dataset::open(const std::string& folder) { return IndexReader(folder).read(); }

void Dataset::verify(ThreadPool& pool, const Progress& progress) const {
    std::vector<const Shard*> all;
    for (const Shards* split : {&train, &val}) {
        for (const Shard& shard : split->shards()) all.push_back(&shard);
    }
    const auto total = (train.tokens() + val.tokens()) * all.front()->header().bytes_per_token;
    std::atomic<std::uint64_t> done = 0;
    // If `progress` throws (Ctrl-C), the other threads end at their next piece.
    std::atomic<bool> stop = false;
    pool.parallel_for(static_cast<std::int64_t>(all.size()), 1,
                      [&](std::int64_t begin, std::int64_t end, int thread) {
                          for (std::int64_t i = begin; i < end; ++i) {
                              all[static_cast<std::size_t>(i)]->verify([&](std::uint64_t bytes) {
                                  done += bytes;
                                  try {
                                      if (thread == 0 && progress) {
                                          progress("checking the data", done, total);
                                      }
                                  } catch (...) {
                                      stop = true;
                                      throw;
                                  }
                                  return !stop;
                              });
                          }
                      });
}

std::shared_ptr<const text::Tokenizer> Dataset::open_tokenizer() const {
    auto tokenizer = text::Tokenizer::from_json_file(tokenizer_path);
    if (train::tokenizer_hash(*tokenizer) == tokenizer_hash) return tokenizer;
    throw Error::input(
        {.file = tokenizer_path,
         .problem =
             fmt::format("is not the tokenizer that the data was packed with ({})", kDataIndexName),
         .remedy = "put that one back, or pack the data again"});
}

void Dataset::check_tokenizer(const text::Tokenizer& tokenizer, const std::string& name) const {
    if (train::tokenizer_hash(tokenizer) == tokenizer_hash) return;
    throw Error::input(
        {.file = name,
         .problem = fmt::format("is not the tokenizer that {} was packed with", folder),
         .remedy = fmt::format("pack the texts again with it ('millrace data pack --tokenizer {}')",
                               name)});
}

}  // namespace mr::train
