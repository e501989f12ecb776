#include "text/unicode.h"

#include <algorithm>
#include <vector>

#include "text/unicode_tables.h"

namespace mr::text {
namespace {

// The length of the sequence that `lead` starts, and the range of its second byte (the Unicode
// standard's table 3-7: no overlong forms, no surrogates, nothing past U+10FFFF).
struct Lead {
    unsigned size;  // 0: not a lead byte
    unsigned char second_low, second_high;
};

Lead lead_of(unsigned char c) {
    if (c < 0x80) return {1, 0, 0};
    if (c >= 0xC2 && c <= 0xDF) return {2, 0x80, 0xBF};
    if (c == 0xE0) return {3, 0xA0, 0xBF};
    if (c == 0xED) return {3, 0x80, 0x9F};
    if (c >= 0xE1 && c <= 0xEF) return {3, 0x80, 0xBF};
    if (c == 0xF0) return {4, 0x90, 0xBF};
    if (c >= 0xF1 && c <= 0xF3) return {4, 0x80, 0xBF};
    if (c == 0xF4) return {4, 0x80, 0x8F};
    return {0, 0, 0};
}

// Bytes at `pos` that belong to one sequence, complete or not; 0 if the first is no lead byte.
unsigned valid_prefix(std::string_view text, std::size_t pos, Lead lead) {
    if (lead.size == 0) return 0;
    unsigned n = 1;
    while (n < lead.size && pos + n < text.size()) {
        const auto c = static_cast<unsigned char>(text[pos + n]);
        const unsigned char low = n == 1 ? lead.second_low : 0x80;
        const unsigned char high = n == 1 ? lead.second_high : 0xBF;
        if (c < low || c > high) break;
        ++n;
    }
    return n;
}

CharClass search_class(char32_t code) {
    const auto* end = tables::kClasses + tables::kClasses_size;
    const auto* it =
        std::upper_bound(tables::kClasses, end, code,
                         [](char32_t c, const tables::ClassRange& r) { return c < r.first; });
    if (it == tables::kClasses || code > (it - 1)->last) return CharClass::other;
    return (it - 1)->kind;
}

std::uint8_t combining_class(char32_t code) {
    if (code < 0x300) return 0;
    const auto* end = tables::kCombining + tables::kCombining_size;
    const auto* it =
        std::upper_bound(tables::kCombining, end, code,
                         [](char32_t c, const tables::CombiningRange& r) { return c < r.first; });
    if (it == tables::kCombining || code > (it - 1)->last) return 0;
    return (it - 1)->combining_class;
}

// Hangul syllables are composed by arithmetic (the Unicode standard, 3.12).
constexpr char32_t kSBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11A7;
constexpr char32_t kLCount = 19, kVCount = 21, kTCount = 28;
constexpr char32_t kSCount = kLCount * kVCount * kTCount;

void append_decomposed(std::u32string& out, char32_t code) {
    if (code < 0xC0 || code >= kBadByte) {
        out += code;
        return;
    }
    if (code >= kSBase && code < kSBase + kSCount) {
        const char32_t index = code - kSBase;
        out += static_cast<char32_t>(kLBase + index / (kVCount * kTCount));
        out += static_cast<char32_t>(kVBase + index % (kVCount * kTCount) / kTCount);
        if (index % kTCount) out += static_cast<char32_t>(kTBase + index % kTCount);
        return;
    }
    const auto* end = tables::kDecompositions + tables::kDecompositions_size;
    const auto* it =
        std::lower_bound(tables::kDecompositions, end, code,
                         [](const tables::Decomposition& d, char32_t c) { return d.code < c; });
    if (it == end || it->code != code) {
        out += code;
        return;
    }
    append_decomposed(out, it->first);  // at most 4 levels in the tables
    if (it->second) append_decomposed(out, it->second);
}

// 0 if the pair does not compose.
char32_t compose(char32_t first, char32_t second) {
    if (first >= kLBase && first < kLBase + kLCount && second >= kVBase &&
        second < kVBase + kVCount) {
        return kSBase + ((first - kLBase) * kVCount + (second - kVBase)) * kTCount;
    }
    if (first >= kSBase && first < kSBase + kSCount && (first - kSBase) % kTCount == 0 &&
        second > kTBase && second < kTBase + kTCount) {
        return first + (second - kTBase);
    }
    const auto* end = tables::kCompositions + tables::kCompositions_size;
    const auto* it =
        std::lower_bound(tables::kCompositions, end, std::pair(first, second),
                         [](const tables::Composition& c, std::pair<char32_t, char32_t> p) {
                             return std::pair(c.first, c.second) < p;
                         });
    return it != end && it->first == first && it->second == second ? it->composed : 0;
}

void order_marks(std::u32string& text) {
    for (std::size_t i = 0; i < text.size();) {
        if (combining_class(text[i]) == 0) {
            ++i;
            continue;
        }
        std::size_t end = i;
        while (end < text.size() && combining_class(text[end]) != 0) ++end;
        const auto at = [&](std::size_t k) { return text.begin() + static_cast<long>(k); };
        std::stable_sort(at(i), at(end), [](char32_t a, char32_t b) {
            return combining_class(a) < combining_class(b);
        });
        i = end;
    }
}

void compose_all(std::u32string& text) {
    if (text.empty()) return;
    constexpr std::size_t kNone = static_cast<std::size_t>(-1);
    std::size_t starter = kNone, out = 0;
    unsigned previous = 0;  // class of the last mark kept since the starter
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char32_t code = text[i];
        const unsigned ccc = combining_class(code);
        // A mark of the same or a higher class in between blocks a mark from its starter.
        const bool adjacent = starter != kNone && out == starter + 1;
        if (starter != kNone && (adjacent || previous < ccc)) {
            if (const char32_t composed = compose(text[starter], code)) {
                text[starter] = composed;
                continue;
            }
        }
        if (ccc == 0) starter = out;
        previous = ccc;
        text[out++] = code;
    }
    text.resize(out);
}

const CharClass* bmp_classes() {
    static const std::vector<CharClass> table = [] {
        std::vector<CharClass> t(0x10000, CharClass::other);
        for (std::size_t i = 0; i < tables::kClasses_size; ++i) {
            for (char32_t c = tables::kClasses[i].first;
                 c <= tables::kClasses[i].last && c < 0x10000; ++c) {
                t[c] = tables::kClasses[i].kind;
            }
        }
        return t;
    }();
    return table.data();
}

}  // namespace

#define MR_O CharClass::other
#define MR_L CharClass::letter
#define MR_N CharClass::number
#define MR_S CharClass::space
// clang-format off
const CharClass kAsciiClass[128] = {
    MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_S, MR_S, MR_S, MR_S, MR_S, MR_O, MR_O,
    MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O,
    MR_S, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O,
    MR_N, MR_N, MR_N, MR_N, MR_N, MR_N, MR_N, MR_N, MR_N, MR_N, MR_O, MR_O, MR_O, MR_O, MR_O, MR_O,
    MR_O, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L,
    MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_O, MR_O, MR_O, MR_O, MR_O,
    MR_O, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L,
    MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_L, MR_O, MR_O, MR_O, MR_O, MR_O,
};
// clang-format on
#undef MR_O
#undef MR_L
#undef MR_N
#undef MR_S

Char char_at_slow(std::string_view text, std::size_t pos) {
    const auto c = static_cast<unsigned char>(text[pos]);
    const Lead lead = lead_of(c);
    if (lead.size == 0 || valid_prefix(text, pos, lead) != lead.size) return {kBadByte + c, 1};
    if (lead.size == 1) return {c, 1};
    char32_t code = c & (0x7Fu >> lead.size);
    for (unsigned i = 1; i < lead.size; ++i) {
        code = code << 6 | (static_cast<unsigned char>(text[pos + i]) & 0x3Fu);
    }
    return {code, lead.size};
}

std::size_t char_before(std::string_view text, std::size_t pos) {
    // A continuation byte is a character of its own only if no preceding character includes it.
    for (std::size_t back = 2; back <= 4 && back <= pos; ++back) {
        if ((static_cast<unsigned char>(text[pos - back + 1]) & 0xC0) != 0x80) break;
        if (char_at(text, pos - back).size == back) return pos - back;
    }
    return pos - 1;
}

CharClass class_of_slow(char32_t code) {
    if (code < 0x10000) return bmp_classes()[code];
    return code < kBadByte ? search_class(code) : CharClass::other;
}

bool is_word(char32_t code) {
    const auto* end = tables::kWords + tables::kWords_size;
    const auto* it = std::upper_bound(
        tables::kWords, end, code, [](char32_t c, const auto& range) { return c < range.first; });
    return it != tables::kWords && code <= (it - 1)->last;
}

void append_utf8(std::string& out, char32_t code) {
    const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
    if (code >= kBadByte) {
        put(code - kBadByte);
    } else if (code < 0x80) {
        put(code);
    } else if (code < 0x800) {
        put(0xC0 | code >> 6);
        put(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        put(0xE0 | code >> 12);
        put(0x80 | (code >> 6 & 0x3F));
        put(0x80 | (code & 0x3F));
    } else {
        put(0xF0 | code >> 18);
        put(0x80 | (code >> 12 & 0x3F));
        put(0x80 | (code >> 6 & 0x3F));
        put(0x80 | (code & 0x3F));
    }
}

bool is_ascii(std::string_view text) {
    unsigned char any = 0;
    for (char c : text) any |= static_cast<unsigned char>(c);
    return any < 0x80;
}

std::string nfc(std::string_view text) {
    // Everything below U+0300 is already composed, and stays so unless a mark follows it.
    bool needed = false;
    std::size_t codes = 0;
    for (std::size_t i = 0; i < text.size(); ++codes) {
        const Char c = char_at(text, i);
        needed |= c.code >= 0x300 && c.code < kBadByte;
        i += c.size;
    }
    if (!needed) return std::string(text);
    std::u32string codepoints;
    codepoints.reserve(codes + codes / 8);
    for (std::size_t i = 0; i < text.size();) {
        const Char c = char_at(text, i);
        append_decomposed(codepoints, c.code);
        i += c.size;
    }
    order_marks(codepoints);
    compose_all(codepoints);
    std::string out;
    out.reserve(text.size());
    for (char32_t c : codepoints) append_utf8(out, c);
    return out;
}

std::size_t incomplete_tail(std::string_view text) {
    const std::size_t most = std::min<std::size_t>(3, text.size());
    for (std::size_t back = 1; back <= most; ++back) {
        const std::size_t pos = text.size() - back;
        const Lead lead = lead_of(static_cast<unsigned char>(text[pos]));
        if (lead.size == 0) continue;  // perhaps a continuation byte: look further back
        return lead.size > back && valid_prefix(text, pos, lead) == back ? back : 0;
    }
    return 0;
}

std::string replace_invalid(std::string_view text) {
    if (is_ascii(text)) return std::string(text);
    std::string out;
    for (std::size_t i = 0; i < text.size();) {
        const Lead lead = lead_of(static_cast<unsigned char>(text[i]));
        const unsigned n = valid_prefix(text, i, lead);
        if (n == lead.size && n > 0) {
            out.append(text, i, n);
        } else {
            append_utf8(out, 0xFFFD);
        }
        i += std::max(1u, n);
    }
    return out;
}

}  // namespace mr::text
