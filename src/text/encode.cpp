// Tokenizer::encode: first added tokens are cut out, then words; then each word is merged.
#include <algorithm>
#include <bit>
#include <deque>
#include <optional>
#include <span>
#include <utility>

#include "core/error.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"

namespace mr::text {
namespace {

// Ids of the words seen so far in one call. Direct-mapped: a new word replaces an old one.
class WordCache {
  public:
    explicit WordCache(std::size_t text_size)
        : slots_(std::bit_ceil(std::clamp<std::size_t>(text_size / 8, 16, 1 << 15))) {}

    struct Slot {
        const char* key = nullptr;
        std::uint32_t size = 0;
        std::uint32_t count = 0;
        std::uint64_t hash = 0;
        std::size_t begin = 0;
        bool from_unk = false, to_unk = false;  // it begins, it ends with an unknown character
    };
    Slot& slot(std::uint64_t hash) { return slots_[hash & (slots_.size() - 1)]; }

    std::vector<std::int32_t> ids;

  private:
    std::vector<Slot> slots_;
};

constexpr std::size_t kLongestCached = 64;  // bytes

class Encoder {
  public:
    Encoder(const Tokenizer::Impl& impl, std::size_t text_size, std::int32_t after,
            std::vector<std::int32_t>& out)
        : impl_(impl), cache_(text_size), out_(out) {
        if (after < 0) return;
        const auto id = static_cast<std::size_t>(after);
        // `unk` and byte tokens stand for text: no section starts after them.
        const bool mark = (impl.added[id] || impl.special[id]) && !impl.in_text[id] &&
                          after != impl.data.unk && impl.data.types[id] != TokenType::byte;
        start_ = mark ? Start::section : Start::inside;
    }

    void text(std::string_view text, bool parse_special, std::span<const LiteralRange> literal) {
        AddedTokens::Search search(impl_.raw_added, text, parse_special, literal);
        for (std::size_t pos = 0;;) {
            const auto match = search.next();
            if (match.begin > pos) section(text, pos, match.begin, parse_special, literal);
            if (match.id < 0) break;
            out_.push_back(match.id);
            pos = match.end;
        }
    }

  private:
    // Encodes bytes [begin, end) of `whole`, which lie between added tokens.
    void section(std::string_view whole, std::size_t begin, std::size_t end, bool parse_special,
                 std::span<const LiteralRange> literal) {
        const TokenizerData& data = impl_.data;
        const bool first = begin == 0;
        std::string_view text = whole.substr(begin, end - begin);
        std::vector<LiteralRange> inside;  // relative to `text`
        if (!impl_.normalized_added.empty()) {
            auto r =
                std::lower_bound(literal.begin(), literal.end(), begin,
                                 [](LiteralRange range, std::size_t b) { return range.end <= b; });
            for (; r != literal.end() && r->begin < end; ++r) {
                inside.push_back(
                    {std::max(r->begin, begin) - begin, std::min(r->end, end) - begin});
            }
        }
        const bool spaces = data.normalizes_spaces() && !impl_.normalized_added.empty();
        if ((data.nfc || spaces) && !is_ascii(text)) {
            text = kept_.emplace_back(normalized(text, inside));
        }
        // Then a normalized token, which has the space, too, is found at the beginning and after
        // one.
        const bool prepends = data.prepends() && !impl_.normalized_added.empty();
        if (prepends && (!first || start_ != Start::inside)) {
            std::string& kept = kept_.emplace_back(1, ' ');
            kept += text;
            text = kept;
            for (LiteralRange& range : inside) range = {range.begin + 1, range.end + 1};
        }
        if (data.model == TokenizerModel::bytes) {
            for (char c : text) {
                if (byte_id(c) >= 0) out_.push_back(byte_id(c));
            }
            return;
        }
        // Where spaces are marks already, they are no white space.
        AddedTokens::Search search(impl_.normalized_added, text, parse_special, inside,
                                   !data.normalizes_spaces());
        for (std::size_t pos = 0;;) {
            const auto match = search.next();
            if (match.begin > pos) {
                plain(text.substr(pos, match.begin - pos), first && pos == 0, prepends);
            }
            if (match.id < 0) break;
            out_.push_back(match.id);
            pos = match.end;
        }
    }

    // NFC, and U+2581 as the space that it stands for. Literal ranges are adjusted: the text inside
    // and between them is normalized part by part.
    std::string normalized(std::string_view text, std::vector<LiteralRange>& ranges) const {
        const TokenizerData& data = impl_.data;
        const auto normal = [&](std::size_t begin, std::size_t end) {
            const std::string_view part = text.substr(begin, end - begin);
            const std::string composed = data.nfc ? nfc(part) : std::string(part);
            return data.normalizes_spaces() ? with_spaces(composed) : composed;
        };
        std::string out;
        std::size_t pos = 0;
        for (LiteralRange& range : ranges) {
            out += normal(pos, range.begin);
            const std::size_t begin = out.size();
            out += normal(range.begin, range.end);
            pos = range.end;
            range = {begin, out.size()};
        }
        return out += normal(pos, text.size());
    }

    // `first`: the encoded text begins here. `has_space`: where one is wanted before it, it is
    // there.
    void plain(std::string_view text, bool first, bool has_space) {
        const TokenizerData& data = impl_.data;
        after_unk_ = false;
        if (data.model == TokenizerModel::sentencepiece_bpe &&
            text.find(kSpaceMark) != std::string_view::npos) {
            // The vocabulary writes a space as U+2581, so a U+2581 in the text is a space, too.
            text = kept_.emplace_back(with_spaces(text));
        }
        const Start start = first ? start_ : Start::section;
        const bool wanted = (data.space_prefix == SpacePrefix::always && start != Start::inside) ||
                            (data.space_prefix == SpacePrefix::first && start == Start::text);
        if (wanted && !has_space && !(data.prefix_if_missing && text.front() == ' ')) {
            std::string& kept = kept_.emplace_back(1, ' ');
            kept += text;
            text = kept;
        }
        if (data.model == TokenizerModel::byte_level_bpe) {
            for (std::size_t pos = 0; pos < text.size();) {
                const std::size_t end = word_end(impl_.pre, text, pos);
                after_unk_ = false;
                word(text.substr(pos, end - pos));
                pos = end;
            }
        } else {
            for (std::size_t pos = 0; pos < text.size();) {
                const std::size_t space =
                    data.split_spaces ? text.find(' ', pos + 1) : std::string_view::npos;
                const std::size_t end = std::min(space, text.size());
                after_unk_ = false;
                sentence(text.substr(pos, end - pos));
                pos = end;
            }
        }
    }

    // SentencePiece merges the whole text at once, or from space to space. Cutting it where no
    // merge can join changes nothing, and lets words be cached.
    void sentence(std::string_view text) {
        if (impl_.data.ignore_merges) {
            if (const std::int32_t id = impl_.whole_piece(text); id >= 0) {
                out_.push_back(id);
                return;
            }
        }
        for (std::size_t pos = 0; pos < text.size();) {
            const std::size_t end = impl_.merges_whole ? text.size() : piece_end(text, pos);
            word(text.substr(pos, end - pos));
            pos = end;
        }
    }
    std::size_t piece_end(std::string_view text, std::size_t pos) const {
        std::size_t end = pos + 1;
        while (end < text.size()) {
            const char left = text[end - 1], right = text[end];
            if (!impl_.joins[Tokenizer::Impl::byte_class(left)]
                            [Tokenizer::Impl::byte_class(right)]) {
                break;
            }
            ++end;
        }
        return end;
    }

    void word(std::string_view word) {
        if (word.size() > kLongestCached) {
            merge_word(word);
            append(symbols_, from_unk_, to_unk_);
            return;
        }
        const std::uint64_t hash = hash_bytes(word);
        WordCache::Slot& slot = cache_.slot(hash);
        if (slot.hash != hash || std::string_view(slot.key, slot.size) != word) {
            merge_word(word);
            slot = {word.data(),
                    static_cast<std::uint32_t>(word.size()),
                    static_cast<std::uint32_t>(symbols_.size()),
                    hash,
                    cache_.ids.size(),
                    from_unk_,
                    to_unk_};
            cache_.ids.insert(cache_.ids.end(), symbols_.begin(), symbols_.end());
        }
        append(std::span(cache_.ids).subspan(slot.begin, slot.count), slot.from_unk, slot.to_unk);
    }

    // A run of unknown characters may span several words. That an id is `unk` does not tell: it may
    // be a piece of text, too.
    void append(std::span<const std::int32_t> ids, bool from_unk, bool to_unk) {
        if (ids.empty()) return;
        const bool fuses =
            impl_.data.fuse_unk && after_unk_ && from_unk && ids.front() == impl_.data.unk;
        out_.insert(out_.end(), ids.begin() + fuses, ids.end());
        after_unk_ = to_unk && ids.back() == impl_.data.unk;
    }

    // Puts the ids into symbols_.
    void merge_word(std::string_view word) {
        symbols_.clear();
        unk_waits_ = from_unk_ = to_unk_ = false;
        if (impl_.data.model == TokenizerModel::byte_level_bpe) {
            if (impl_.data.ignore_merges) {
                if (const std::int32_t id = impl_.by_bytes.find(word); id >= 0) {
                    symbols_.push_back(id);
                    return;
                }
            }
            for (char c : word) push_byte(c);
            put_unk();
            merge(impl_.pairs, symbols_, scratch_);
            return;
        }
        for (std::size_t i = 0; i < word.size();) {
            const Char c = char_at(word, i);
            push_char(word.substr(i, c.size));
            i += c.size;
        }
        put_unk();
        merge(impl_.pairs, symbols_, scratch_);
        if (impl_.partial_chars.empty()) return;
        const auto vocab = static_cast<std::int32_t>(impl_.data.tokens.size());
        if (std::none_of(symbols_.begin(), symbols_.end(),
                         [&](std::int32_t id) { return id >= vocab; })) {
            return;
        }
        const std::vector<std::int32_t> parts = std::exchange(symbols_, {});
        from_unk_ = to_unk_ = false;
        for (std::int32_t id : parts) {
            if (id < vocab) {
                push_known(id);
            } else {
                push_unknown(impl_.partial_chars[static_cast<std::size_t>(id - vocab)]);
            }
        }
        put_unk();
    }

    void push_char(std::string_view character) {
        std::int32_t id = impl_.by_bytes.find(character);
        if (id < 0 && !impl_.partial_chars.empty()) id = impl_.partial_ids.find(character);
        if (id >= 0) {
            push_known(id);
        } else {
            push_unknown(character);
        }
    }
    void push_known(std::int32_t id) {
        put_unk();
        symbols_.push_back(id);
        to_unk_ = false;
    }

    // A character that is no token: its byte tokens if all of them exist, else `unk`. In a
    // vocabulary by merges the bytes go before an `unk` that waits, as in Hugging Face's library.
    void push_unknown(std::string_view character) {
        if (character == " ") character = kSpaceMark;  // as the vocabulary would write it
        if (has_bytes(character)) {
            if (!impl_.merges_whole) put_unk();
            for (char c : character) symbols_.push_back(byte_id(c));
            to_unk_ = false;
        } else {
            push_unk();
        }
    }
    // Of a run of unknown characters there is one `unk`, if they fuse.
    void push_unk() {
        if (!impl_.data.fuse_unk) put_unk();
        unk_waits_ = impl_.data.unk.has_value();
    }
    void put_unk() {
        if (!std::exchange(unk_waits_, false)) return;
        from_unk_ = from_unk_ || symbols_.empty();
        to_unk_ = true;
        symbols_.push_back(*impl_.data.unk);
    }

    // Some byte-level vocabularies have no tokens for bytes that UTF-8 never uses.
    void push_byte(char c) {
        constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
        const auto byte = static_cast<unsigned char>(c);
        const bool never = byte == 0xC0 || byte == 0xC1 || byte >= 0xF5;
        if (byte_id(c) >= 0) {
            push_known(byte_id(c));
        } else if (never && has_bytes(kReplacement)) {
            for (char r : kReplacement) push_known(byte_id(r));
        } else {
            push_unk();
        }
    }

    std::int32_t byte_id(char c) const { return impl_.byte_ids[static_cast<unsigned char>(c)]; }
    bool has_bytes(std::string_view bytes) const {
        return std::all_of(bytes.begin(), bytes.end(), [&](char c) { return byte_id(c) >= 0; });
    }

    // What begins here: a text, a section after an added token, or neither (the text goes on).
    enum class Start { text, section, inside };

    const Tokenizer::Impl& impl_;
    Start start_ = Start::text;
    WordCache cache_;
    std::vector<std::int32_t>& out_;
    std::vector<std::int32_t> symbols_;
    MergeScratch scratch_;
    bool from_unk_ = false;         // symbols_ begin with an `unk` that stands for a character
    bool to_unk_ = false;           // ... end with one
    bool after_unk_ = false;        // the last id is the `unk` of a run that may go on
    bool unk_waits_ = false;        // an `unk` that symbols_ get before the next known character
    std::deque<std::string> kept_;  // owns texts that the cache's keys point into
};

constexpr std::size_t kLongestSearch = 64 << 10;  // bytes searched for a place to cut

}  // namespace

// A text can be cut between an ASCII letter and a single space before another letter: every
// pre-tokenizer ends a word there and begins the next one with the space; nothing composes across
// it; and if the tokenizer is `cuttable`, no added token spans it.
std::size_t Tokenizer::cut_before(std::string_view text, std::size_t near) const {
    if (!impl_->cuttable || text.size() < 3) return 0;
    const std::size_t last = std::min(near, text.size() - 2);
    const std::size_t first = last > kLongestSearch ? last - kLongestSearch : 1;
    for (std::size_t i = last; i >= first; --i) {
        if (text[i] == ' ' && Impl::is_letter(text[i - 1]) && Impl::is_letter(text[i + 1]))
            return i;
    }
    return 0;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
    if (text.size() > 0x7FFFFFFF) {
        throw Error::input({.field = "text",
                            .value = std::to_string(text.size()) + " bytes",
                            .problem = "is too long to tokenize at once",
                            .remedy = "cut it into parts of less than 2 GiB"});
    }
    MR_CHECK(options.after < vocab_size() && (options.after < 0 || !options.add_special),
             "a text goes on behind a token of the vocabulary");
    std::vector<std::int32_t> out;
    out.reserve(text.size() / 4 + 8);
    if (options.add_special) out = data().prefix;
    Encoder(*impl_, text.size(), options.after, out)
        .text(text, options.parse_special, options.literal);
    if (options.add_special) {
        out.insert(out.end(), data().suffix.begin(), data().suffix.end());
    }
    return out;
}

}  // namespace mr::text
