#include "train/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>
#include <functional>
#include <iterator>
#include <span>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/output_file.h"
#include "core/output_folder.h"
#include "core/philox.h"
#include "formats/json.h"
#include "model/io/source.h"
#include "model/io/tokenizer_companions.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json_writer.h"
#include "train/corpus.h"

namespace mr::train {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kHeldOutStream = 0x5EED;   // for the draws that choose validation documents
constexpr std::size_t kBatchBytes = 16u << 20;     // text encoded between two writes
constexpr std::size_t kBatchDocuments = 1u << 16;  // at most
constexpr std::size_t kOpenFiles = 256;            // at most
constexpr std::size_t kPieceBytes = 256u << 10;    // part of a document for one thread

constexpr const char* kTokenizerConfig = "tokenizer_config.json";

bool is_companion(std::string_view name) {
    return std::ranges::count(model::kTokenizerCompanions, name) > 0;
}

void write_file(const std::string& path, std::string_view bytes) {
    OutputFile file(path);
    file.write(bytes);
    file.commit();
}

// Signs that pack() did not write a folder, or not all of it; else "".
std::string foreign(const fs::path& folder) {
    std::vector<std::string> names;
    std::error_code code;
    for (auto it = fs::directory_iterator(folder, code); !code && it != fs::directory_iterator();
         it.increment(code)) {
        names.push_back(it->path().filename().string());
    }
    std::sort(names.begin(), names.end());
    bool indexed = false;
    for (const std::string& name : names) {
        const bool shard =
            name.ends_with(".bin") && (name.starts_with("train-") || name.starts_with("val-"));
        const bool known =
            name == kDataIndexName || name == kDataTokenizerName || is_companion(name);
        if (!shard && !known) return fmt::format("has '{}', which pack did not write", name);
        indexed = indexed || name == kDataIndexName;
    }
    if (!indexed) return fmt::format("has no {}", kDataIndexName);
    // Another program's index is foreign; a damaged one of ours may be replaced.
    const fs::path index = folder / kDataIndexName;
    if (fs::file_size(index, code) == 0 || code) return "";
    const std::string text = read_text_file(index.string());
    try {
        const auto json = formats::JsonDocument::parse(text, index.string());
        if (json.root()["format"] == kDataFormat) return "";
    } catch (const Error&) {
        return "";
    }
    return fmt::format("its {} is not that of packed data", kDataIndexName);
}

// The shards of one split.
class SplitWriter {
  public:
    SplitWriter(const OutputFolder& folder, std::string name, ShardHeader header,
                std::uint64_t shard_tokens)
        : folder_(folder), name_(std::move(name)), header_(header), shard_tokens_(shard_tokens) {}

    SplitStats stats;

    void add(std::span<const std::int32_t> ids) {
        stats.tokens += ids.size();
        while (!ids.empty()) {
            if (!file_) open();
            const auto count = static_cast<std::size_t>(
                std::min<std::uint64_t>(ids.size(), shard_tokens_ - header_.tokens));
            put(ids.first(count));
            ids = ids.subspan(count);
            if (header_.tokens == shard_tokens_) close();
        }
    }

    // The JSON of this split for the index. Closes the last shard.
    std::string finish() {
        if (file_) close();
        return fmt::format(
            "{{\n    \"documents\": {}, \"bytes\": {}, \"tokens\": {},\n    \"shards\": [{}]\n  }}",
            stats.documents, stats.bytes, stats.tokens, index_);
    }
    std::size_t shards() const { return shards_; }

  private:
    void open() {
        file_name_ = fmt::format("{}-{:05}.bin", name_, shards_++);
        file_.emplace(folder_.file(file_name_));
        file_->write(std::string(kShardHeaderBytes, '\0'));
        header_.tokens = 0;
        header_.checksum = kFnvStart;
    }
    void put(std::span<const std::int32_t> ids) {
        bytes_.clear();
        for (const std::int32_t id : ids) {
            for (std::uint32_t i = 0; i < header_.bytes_per_token; ++i) {
                bytes_ += static_cast<char>(static_cast<std::uint32_t>(id) >> (8 * i));
            }
        }
        header_.checksum = fnv1a(std::as_bytes(std::span(bytes_)), header_.checksum);
        header_.tokens += ids.size();
        file_->write(bytes_);
    }
    void close() {
        file_->rewrite(0, shard_header_bytes(header_));
        file_->commit();
        file_.reset();
        index_ +=
            fmt::format("{}\n      {{\"file\": \"{}\", \"tokens\": {}, \"checksum\": \"{:016x}\"}}",
                        index_.empty() ? "" : ",", file_name_, header_.tokens, header_.checksum);
    }

    const OutputFolder& folder_;
    std::string name_, file_name_, index_, bytes_;
    ShardHeader header_;
    std::uint64_t shard_tokens_;
    std::size_t shards_ = 0;
    std::optional<OutputFile> file_;
};

std::int32_t find_end(const text::Tokenizer& tokenizer, const PackOptions& options) {
    if (!options.end_token.empty()) {
        if (const auto id = tokenizer.find(options.end_token)) return *id;
        throw Error::usage({.field = "--end",
                            .value = options.end_token,
                            .problem = "is not a token of this tokenizer"});
    }
    if (tokenizer.eos()) return *tokenizer.eos();
    if (const auto id = tokenizer.find(text::kEndOfText)) return *id;
    throw Error::input({.file = options.tokenizer,
                        .problem = "the tokenizer has no token that ends a text",
                        .remedy = "name one with --end"});
}

// What makes `b` encode a text differently from `a`; "" if nothing does. The hash in the shards
// covers tokens and merges alone.
std::string_view difference(const text::Tokenizer& a, const text::Tokenizer& b) {
    using text::AddedToken;
    if (tokenizer_hash(a) != tokenizer_hash(b)) return "vocabulary";
    const text::TokenizerData &x = a.data(), &y = b.data();
    // Without a space prefix it is of no importance when there would be one.
    const bool prefixed = x.space_prefix != text::SpacePrefix::never;
    if (x.space_prefix != y.space_prefix ||
        (prefixed && x.prefix_if_missing != y.prefix_if_missing) ||
        x.split_spaces != y.split_spaces) {
        return "treatment of spaces";
    }
    if (x.nfc != y.nfc) return "normalization";
    if (x.ignore_merges != y.ignore_merges) return "treatment of words that are tokens";
    if (x.unk != y.unk || (x.unk && x.fuse_unk != y.fuse_unk)) return "unknown token";
    if (x.prefix != y.prefix || x.suffix != y.suffix) return "tokens around a text";
    const auto same = [](const AddedToken& s, const AddedToken& t) {
        const auto members = [](const AddedToken& token) {
            const auto& [id, text, special, left, right, single_word, normalized, piece] = token;
            return std::tie(id, text, special, left, right, single_word, normalized, piece);
        };
        return members(s) == members(t);
    };
    if (!std::equal(x.added.begin(), x.added.end(), y.added.begin(), y.added.end(), same)) {
        return "added tokens";
    }
    return "";
}

// Copies the tokenizer's own files if it is a tokenizer.json, else writes one.
void put_tokenizer(const OutputFolder& folder, const text::Tokenizer& tokenizer,
                   const std::string& source) {
    const auto refused = [&](std::string problem) {
        return Error::input({.file = source,
                             .problem = std::move(problem),
                             .remedy = "give the model's own tokenizer.json"});
    };
    std::error_code code;
    const fs::path given = model::resolve_run(source);
    const fs::path file = fs::is_directory(given, code) ? given / "tokenizer.json" : given;
    if (file.extension() == ".json") {
        write_file(folder.file(kDataTokenizerName), read_text_file(file.string()));
        for (const fs::path& beside : model::tokenizer_companions(file.parent_path())) {
            write_file(folder.file(beside.filename().string()), read_text_file(beside.string()));
        }
    } else {
        if (tokenizer.data().model != text::TokenizerModel::byte_level_bpe) {
            throw refused("only a byte-level tokenizer can be written as tokenizer.json");
        }
        const auto files = text::huggingface_tokenizer(tokenizer.data());
        if (!files) throw refused("its tokenizer cannot be written as tokenizer.json");
        write_file(folder.file(kDataTokenizerName), files->tokenizer);
        write_file(folder.file(kTokenizerConfig), files->config);
    }
    const auto written = text::Tokenizer::from_json_file(folder.file(kDataTokenizerName));
    const std::string_view differs = difference(tokenizer, *written);
    if (!differs.empty()) {
        throw refused(fmt::format(
            "its tokenizer cannot be written as tokenizer.json: its {} would differ", differs));
    }
}

std::uint64_t held_out_draw(std::uint64_t seed, std::uint64_t document) {
    const auto words = philox(seed, document, kHeldOutStream);
    return std::uint64_t{words[1]} << 32 | words[0];
}

// What is held out for validation: the documents whose draw is at most `limit`, or of such a
// document only its last part.
struct HeldOut {
    std::optional<std::uint64_t> limit{};
    double tail = 1;  // share of the document
};

// A document of more than so many times the share asked for is not held out whole.
constexpr double kFarMore = 10;

HeldOut held_out(const PackOptions& options, const std::vector<std::string>& files,
                 const text::ChatWriter& chats, const Progress& progress) {
    if (!options.val_data.empty() || options.val_docs == 0u ||
        (!options.val_docs && options.val <= 0)) {
        return {};
    }
    std::vector<std::uint64_t> draws;
    struct {
        std::uint64_t draw = ~std::uint64_t{0};
        double bytes = 0;
    } first;  // the document of the least draw
    double bytes = 0;
    for (const std::string& path : files) {
        CorpusFile file(path, options.split, &chats, progress);
        for (Document document; file.next(document); file.release()) {
            draws.push_back(held_out_draw(options.seed, draws.size()));
            const auto size = static_cast<double>(document.text.size());
            bytes += size;
            if (draws.back() <= first.draw) first = {draws.back(), size};
        }
    }
    const std::uint64_t count = draws.size();
    if (options.val_docs && *options.val_docs >= count) {
        throw Error::input(
            {.field = "--val-docs",
             .value = fmt::format("{}", *options.val_docs),
             .problem = fmt::format("leaves nothing to train on: of documents there {} {}",
                                    count == 1 ? "is" : "are", count),
             .remedy = "hold out fewer, or check --split"});
    }
    const auto share =
        static_cast<std::uint64_t>(std::llround(options.val * static_cast<double>(count)));
    if (count == 0) return {};
    if (!options.val_docs &&
        (count == 1 || (share == 0 && first.bytes > kFarMore * options.val * bytes))) {
        return {.limit = first.draw, .tail = options.val * bytes / first.bytes};
    }
    const std::uint64_t wanted =
        options.val_docs.value_or(std::clamp<std::uint64_t>(share, 1, count - 1));
    const auto nth = draws.begin() + static_cast<std::ptrdiff_t>(wanted - 1);
    std::nth_element(draws.begin(), nth, draws.end());
    return {.limit = *nth};
}

class Packer {
  public:
    Packer(const text::Tokenizer& tokenizer, const text::ChatWriter& chats,
           const PackOptions& options, std::int32_t end, ThreadPool& pool)
        : tokenizer_(tokenizer), chats_(chats), options_(options), end_(end), pool_(pool) {
        // A model with a beginning-of-text token before every prompt must see it in training.
        for (const std::int32_t id : tokenizer.data().prefix) {
            if (id != end) before_.push_back(id);
        }
    }

    // Packs all documents of `files`: to `val` what is held out, otherwise to `train`.
    void pack(const std::vector<std::string>& files, SplitWriter& train, SplitWriter& val,
              const HeldOut& held_out, const Progress& progress) {
        const std::uint64_t total = corpus_bytes(files);
        std::uint64_t number = 0, before = 0;
        std::deque<CorpusFile> open;  // the batch points into these
        for (const std::string& path : files) {
            CorpusFile& file = open.emplace_back(path, options_.split, &chats_, progress);
            const std::uint64_t bytes = file_bytes(path);
            const auto flush = [&] {
                encode_batch();
                while (open.size() > 1) open.pop_front();
                file.release();
                const auto done = static_cast<double>(bytes) * file.done();
                if (progress) progress("packing", before + static_cast<std::uint64_t>(done), total);
            };
            for (Document document; file.next(document);) {
                const std::uint64_t draw = held_out_draw(options_.seed, number++);
                const bool held = held_out.limit && draw <= *held_out.limit;
                const bool whole = held && held_out.tail >= 1;
                if (document.chat) {  // of a conversation no part is held out
                    require_template(path);
                    batch_.push_back(
                        {document.text, document.chat, whole ? &val : &train, true, true});
                    batch_bytes_ += document.text.size();
                    if (full()) flush();
                    continue;
                }
                const std::size_t tail = held && !whole ? tail_of(document.text, held_out.tail) : 0;
                add(document.text.substr(0, document.text.size() - tail), whole ? val : train,
                    flush);
                if (tail > 0) add(document.text.substr(document.text.size() - tail), val, flush);
            }
            if (open.size() >= kOpenFiles) flush();
            before += bytes;
        }
        encode_batch();
    }

  private:
    struct Item {
        std::string_view text;  // a document, or a piece of one
        const text::ChatText* chat;
        SplitWriter* to;
        bool first, last;  // piece of its document
    };

    bool full() const { return batch_bytes_ >= kBatchBytes || batch_.size() >= kBatchDocuments; }

    // A long document goes in pieces, so that several threads encode it.
    void add(std::string_view document, SplitWriter& to, const std::function<void()>& flush) {
        for (bool first = true, last = false; !last; first = false) {
            const std::size_t cut =
                document.size() > kPieceBytes ? tokenizer_.cut_before(document, kPieceBytes) : 0;
            last = cut == 0;
            const std::string_view piece = last ? document : document.substr(0, cut);
            document.remove_prefix(piece.size());
            batch_.push_back({piece, nullptr, &to, first, last});
            batch_bytes_ += piece.size();
            if (full()) flush();
        }
    }

    // Bytes at the end that are about this share of the document: whole lines if there are any, or
    // whole words.
    static std::size_t tail_of(std::string_view document, double share) {
        const auto size = static_cast<double>(document.size());
        const auto wanted = static_cast<std::size_t>(std::ceil(share * size));
        if (wanted == 0 || wanted >= document.size()) return 0;
        const std::size_t at = document.size() - wanted;
        const std::size_t line = document.rfind('\n', at - 1);
        if (line != document.npos && at - line <= wanted) return document.size() - line - 1;
        const std::size_t word = document.rfind(' ', at - 1);
        return word == document.npos || word == 0 ? 0 : document.size() - word - 1;
    }

    void require_template(const std::string& path) const {
        if (!chats_.continues_texts() && chats_.notice().empty()) return;
        throw Error::input({.file = path,
                            .problem = chats_.continues_texts()
                                           ? "has messages, but the tokenizer has no chat template"
                                           : "has messages, and they would not be written as the "
                                             "model's own template does: " +
                                                 chats_.notice(),
                            .remedy = "give the folder of a chat model with --tokenizer"});
    }

    std::vector<std::int32_t> ids_of(const Item& item) const {
        if (!item.chat) {
            return tokenizer_.encode(
                item.text, {.add_special = false, .parse_special = options_.parse_special});
        }
        // The tokens around it are those of every document, whether the template wrote them or not.
        std::vector<std::int32_t> ids =
            text::encode_chat(tokenizer_, *item.chat, options_.parse_special);
        const std::vector<std::int32_t>& prefix = tokenizer_.data().prefix;
        if (ids.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin())) {
            ids.erase(ids.begin(), ids.begin() + std::ssize(prefix));
        }
        if (!ids.empty() && ids.back() == end_) ids.pop_back();
        return ids;
    }

    // Encodes in parallel, writes in order.
    void encode_batch() {
        ids_.resize(std::max(ids_.size(), batch_.size()));
        const auto count = static_cast<std::int64_t>(batch_.size());
        pool_.parallel_for(count, batch_bytes_ > kPieceBytes ? 1 : 8,
                           [&](std::int64_t begin, std::int64_t end, int) {
                               for (std::int64_t i = begin; i < end; ++i) {
                                   const auto at = static_cast<std::size_t>(i);
                                   ids_[at] = ids_of(batch_[at]);
                               }
                           });
        const std::span<const std::int32_t> end(&end_, 1);
        for (std::size_t i = 0; i < batch_.size(); ++i) {
            const Item& item = batch_[i];
            SplitWriter& to = *item.to;
            if (to.stats.tokens == 0) to.add(end);
            if (item.first) to.add(before_);
            to.add(ids_[i]);
            if (item.last) to.add(end);
            if (item.last) ++to.stats.documents;
            to.stats.bytes += item.text.size();
        }
        batch_.clear();
        batch_bytes_ = 0;
    }

    const text::Tokenizer& tokenizer_;
    const text::ChatWriter& chats_;
    const PackOptions& options_;
    const std::int32_t end_;
    ThreadPool& pool_;
    std::vector<std::int32_t> before_;
    std::vector<Item> batch_;
    std::size_t batch_bytes_ = 0;
    std::vector<std::vector<std::int32_t>> ids_;  // of the batch's documents
};

}  // namespace

PackResult pack(const PackOptions& options, ThreadPool& pool, const Progress& progress) {
    if (options.shard_tokens == 0) {
        throw Error::usage(
            {.field = "--shard-tokens", .value = "0", .problem = "must be at least 1"});
    }
    if (!(options.val >= 0 && options.val < 1)) {
        throw Error::usage({.field = "--val",
                            .value = fmt::format("{}", options.val),
                            .problem = "is not a share from 0 to below 1"});
    }
    const auto tokenizer = model::open_tokenizer(options.tokenizer, 0);
    PackResult result;
    result.vocab = static_cast<std::uint32_t>(tokenizer->vocab_size());
    result.bytes_per_token = result.vocab <= 1u << 16 ? 2 : 4;
    result.end_token = find_end(*tokenizer, options);
    const std::vector<std::string> files = corpus_files(options.data);
    const std::vector<std::string> val_files = corpus_files(options.val_data);
    result.files = files.size() + val_files.size();

    OutputFolder folder(options.out, foreign, options.force);
    put_tokenizer(folder, *tokenizer, options.tokenizer);
    ShardHeader header;
    header.bytes_per_token = result.bytes_per_token;
    header.vocab = result.vocab;
    header.tokenizer_hash = tokenizer_hash(*tokenizer);
    SplitWriter train(folder, "train", header, options.shard_tokens);
    SplitWriter val(folder, "val", header, options.shard_tokens);
    // Templates that write the date write always the same one: packing again gives the same bytes.
    std::tm date{};
    date.tm_year = 2025 - 1900;
    date.tm_mday = 1;
    date.tm_wday = 3;
    const text::ChatWriter chats(*tokenizer, {.now = date});
    Packer packer(*tokenizer, chats, options, result.end_token, pool);
    packer.pack(files, train, val, held_out(options, files, chats, progress), progress);
    if (!val_files.empty()) packer.pack(val_files, val, val, {}, progress);
    if (train.stats.documents == 0) {
        throw Error::input({.file = options.data.empty() ? "" : options.data.front(),
                            .problem = "contains no text",
                            .remedy = "give files with text"});
    }

    const std::string train_json = train.finish(), val_json = val.finish();
    write_file(
        folder.file(kDataIndexName),
        fmt::format("{{\n  \"format\": \"{}\",\n  \"version\": {},\n  \"vocab\": {},\n"
                    "  \"bytes_per_token\": {},\n  \"end_token\": {},\n"
                    "  \"tokenizer_hash\": \"{:016x}\",\n  \"seed\": {},\n"
                    "  \"train\": {},\n  \"val\": {}\n}}\n",
                    kDataFormat, kShardVersion, result.vocab, result.bytes_per_token,
                    result.end_token, header.tokenizer_hash, options.seed, train_json, val_json));
    folder.commit();
    result.train = train.stats;
    result.val = val.stats;
    result.train_shards = train.shards();
    result.val_shards = val.shards();
    return result;
}

}  // namespace mr::train
