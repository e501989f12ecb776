#include "text/pretokenize.h"

#include "text/unicode.h"

namespace mr::text {
namespace {

// The end of the run of characters of class `kind` that starts at `pos`.
std::size_t run_end(CharClass kind, std::string_view text, std::size_t pos) {
    while (pos < text.size()) {
        const Char c = char_at(text, pos);
        if (class_of(c.code) != kind) break;
        pos += c.size;
    }
    return pos;
}

// Length in bytes of 's 't 'm 'd 're 've 'll at `pos`; 0: none is there.
std::size_t contraction(std::string_view text, std::size_t pos, bool any_case) {
    if (text[pos] != '\'' || pos + 1 >= text.size()) return 0;
    // U+017F, the long s, equals s in a case-insensitive regular expression.
    if (any_case && text.substr(pos + 1, 2) == "\xC5\xBF") return 3;
    const auto letter = [&](std::size_t i) -> char {
        if (pos + i >= text.size()) return 0;
        const char c = text[pos + i];
        return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    };
    const char a = letter(1), b = letter(2);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    return 0;
}

// \s+(?!\S)|\s+ for white space at `pos`: the run without its last character, which belongs to the
// next word; the whole run if it ends the text or is one character.
std::size_t space_end(std::string_view text, std::size_t pos) {
    std::size_t end = pos, last = pos;
    while (end < text.size()) {
        const Char c = char_at(text, end);
        if (class_of(c.code) != CharClass::space) break;
        last = end;
        end += c.size;
    }
    return end == text.size() || last == pos ? end : last;
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::size_t gpt2_end(std::string_view text, std::size_t pos) {
    if (const std::size_t n = contraction(text, pos, false)) return pos + n;
    std::size_t start = pos;
    if (text[pos] == ' ' && pos + 1 < text.size()) ++start;
    const CharClass kind = class_of(char_at(text, start).code);
    if (kind != CharClass::space) return run_end(kind, text, start);
    return space_end(text, pos);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,MAX}| ?[^\s\p{L}\p{N}]+[\r\n]*
// |\s*[\r\n]+|\s+(?!\S)|\s+
std::size_t llama3_end(std::string_view text, std::size_t pos, int max_digits) {
    const auto is_newline = [](char32_t c) { return c == '\r' || c == '\n'; };
    if (const std::size_t n = contraction(text, pos, true)) return pos + n;
    const Char first = char_at(text, pos);
    const CharClass kind = class_of(first.code);
    if (kind == CharClass::letter) return run_end(CharClass::letter, text, pos);
    if (kind == CharClass::number) {
        std::size_t end = pos + first.size;
        for (int i = 1; i < max_digits && end < text.size(); ++i) {
            const Char c = char_at(text, end);
            if (class_of(c.code) != CharClass::number) break;
            end += c.size;
        }
        return end;
    }
    const std::size_t next = pos + first.size;
    const CharClass next_kind =
        next < text.size() ? class_of(char_at(text, next).code) : CharClass::space;
    if (!is_newline(first.code) && next_kind == CharClass::letter) {
        return run_end(CharClass::letter, text, next);
    }
    if (kind == CharClass::other || (first.code == ' ' && next_kind == CharClass::other)) {
        std::size_t end = run_end(CharClass::other, text, kind == CharClass::other ? pos : next);
        while (end < text.size() && is_newline(static_cast<unsigned char>(text[end]))) ++end;
        return end;
    }
    // White space: up to and including the last line end of the run, if there is one.
    std::size_t end = pos, after_newline = pos;
    while (end < text.size()) {
        const Char c = char_at(text, end);
        if (class_of(c.code) != CharClass::space) break;
        end += c.size;
        if (is_newline(c.code)) after_newline = end;
    }
    return after_newline > pos ? after_newline : space_end(text, pos);
}

constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt2ShortRegex =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Tail = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Head[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)",
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|)",
};

}  // namespace

std::size_t word_end(PreTokenizer kind, std::string_view text, std::size_t pos) {
    switch (kind) {
        case PreTokenizer::gpt2:
            return gpt2_end(text, pos);
        case PreTokenizer::llama3:
            return llama3_end(text, pos, 3);
        case PreTokenizer::qwen2:
            return llama3_end(text, pos, 1);
    }
    return text.size();
}

std::optional<PreTokenizer> pre_tokenizer_of_name(std::string_view name) {
    // Files from before this key existed use GPT-2's kind.
    for (std::string_view n :
         {"", "default", "gpt-2", "gpt2", "gpt-neox", "phi-2", "mpt", "olmo"}) {
        if (name == n) return PreTokenizer::gpt2;
    }
    for (std::string_view n : {"llama-bpe", "llama3", "llama-v3", "smaug-bpe"}) {
        if (name == n) return PreTokenizer::llama3;
    }
    for (std::string_view n : {"qwen2", "deepseek-r1-qwen"}) {
        if (name == n) return PreTokenizer::qwen2;
    }
    return std::nullopt;
}

std::optional<PreTokenizer> pre_tokenizer_of_regex(std::string_view regex) {
    if (regex == kGpt2Regex || regex == kGpt2ShortRegex) return PreTokenizer::gpt2;
    if (!regex.ends_with(kLlama3Tail)) return std::nullopt;
    regex.remove_suffix(kLlama3Tail.size());
    for (std::string_view head : kLlama3Head) {
        if (!regex.starts_with(head)) continue;
        const std::string_view digits = regex.substr(head.size());
        if (digits == R"(\p{N}{1,3})") return PreTokenizer::llama3;
        if (digits == R"(\p{N})") return PreTokenizer::qwen2;
    }
    return std::nullopt;
}

std::string_view pre_tokenizer_name(PreTokenizer kind) {
    switch (kind) {
        case PreTokenizer::gpt2:
            return "gpt-2";
        case PreTokenizer::llama3:
            return "llama-bpe";
        case PreTokenizer::qwen2:
            return "qwen2";
    }
    return "";
}

std::string pre_tokenizer_regex(PreTokenizer kind) {
    if (kind == PreTokenizer::gpt2) return std::string(kGpt2Regex);
    const char* digits = kind == PreTokenizer::llama3 ? R"(\p{N}{1,3})" : R"(\p{N})";
    return std::string(kLlama3Head[0]).append(digits).append(kLlama3Tail);
}

}  // namespace mr::text
