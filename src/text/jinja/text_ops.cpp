#include "text/jinja/text_ops.h"

#include <algorithm>

#include "text/unicode.h"

namespace mr::text::jinja {
namespace {

bool ends_line(char32_t c) {
    return (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

void need_separator(const MarkedText* separator) {
    if (separator && separator->empty()) throw Failure{"splits at an empty string"};
}

}  // namespace

CharIndex::CharIndex(Budget& budget, const MarkedText& text)
    : ascii_(is_ascii(text.bytes())), size_(text.size()) {
    budget.step(1 + size_ / 16);
    if (ascii_) return;
    budget.step(size_ / 2);  // the index takes 8 bytes per character
    for (std::size_t i = 0; i < size_; i += char_at(text.bytes(), i).size) starts_.push_back(i);
    starts_.push_back(size_);
}

std::size_t CharIndex::character(std::size_t byte) const {
    if (ascii_) return byte;
    return static_cast<std::size_t>(std::lower_bound(starts_.begin(), starts_.end(), byte) -
                                    starts_.begin());
}

std::size_t char_count(Budget& budget, const MarkedText& text) {
    budget.step(1 + text.size() / 16);
    if (is_ascii(text.bytes())) return text.size();
    std::size_t count = 0;
    for (std::size_t i = 0; i < text.size(); i += char_at(text.bytes(), i).size) ++count;
    return count;
}

bool is_space(char32_t code) {
    return class_of(code) == CharClass::space || (code >= 0x1C && code <= 0x1F);
}

MarkedText strip(Budget& budget, const MarkedText& text, const MarkedText* chars, bool left,
                 bool right) {
    budget.make(text.size());
    const std::string& bytes = text.bytes();
    const auto goes = [&](std::size_t at) {
        const Char c = char_at(bytes, at);
        if (!chars) return is_space(c.code);
        budget.step(1 + chars->size() / 64);
        for (std::size_t i = 0; i < chars->size(); i += char_at(chars->bytes(), i).size) {
            if (char_at(chars->bytes(), i).code == c.code) return true;
        }
        return false;
    };
    std::size_t begin = 0, end = bytes.size();
    while (left && begin < end && goes(begin)) begin += char_at(bytes, begin).size;
    while (right && end > begin && goes(char_before(bytes, end))) end = char_before(bytes, end);
    return text.slice(begin, end);
}

std::vector<MarkedText> split(Budget& budget, const MarkedText& text, const MarkedText* separator,
                              std::int64_t most) {
    need_separator(separator);
    budget.make(text.size());
    const std::string& bytes = text.bytes();
    std::vector<MarkedText> out;
    const auto full = [&] { return most >= 0 && static_cast<std::int64_t>(out.size()) >= most; };
    std::size_t pos = 0;
    if (separator) {
        while (!full()) {
            budget.hold(1);
            const std::size_t found = bytes.find(separator->bytes(), pos);
            if (found == std::string::npos) break;
            out.push_back(text.slice(pos, found));
            pos = found + separator->size();
        }
        out.push_back(text.slice(pos, bytes.size()));
        return out;
    }
    for (;;) {
        budget.hold(1);
        while (pos < bytes.size() && is_space(char_at(bytes, pos).code)) {
            pos += char_at(bytes, pos).size;
        }
        if (pos >= bytes.size()) return out;
        if (full()) break;
        std::size_t end = pos;
        while (end < bytes.size() && !is_space(char_at(bytes, end).code)) {
            end += char_at(bytes, end).size;
        }
        out.push_back(text.slice(pos, end));
        pos = end;
    }
    out.push_back(text.slice(pos, bytes.size()));
    return out;
}

std::vector<MarkedText> split_from_right(Budget& budget, const MarkedText& text,
                                         const MarkedText* separator, std::int64_t most) {
    need_separator(separator);
    if (most < 0) return split(budget, text, separator, most);
    budget.make(text.size());
    const std::string& bytes = text.bytes();
    std::vector<MarkedText> out;
    std::size_t end = bytes.size();
    const auto blank_before = [&](std::size_t at) {
        return is_space(char_at(bytes, char_before(bytes, at)).code);
    };
    while (static_cast<std::int64_t>(out.size()) < most) {
        budget.hold(1);
        if (separator) {
            if (end < separator->size()) break;
            const std::size_t found = bytes.rfind(separator->bytes(), end - separator->size());
            if (found == std::string::npos) break;
            out.push_back(text.slice(found + separator->size(), end));
            end = found;
        } else {
            while (end > 0 && blank_before(end)) end = char_before(bytes, end);
            if (end == 0) break;
            std::size_t begin = end;
            while (begin > 0 && !blank_before(begin)) begin = char_before(bytes, begin);
            out.push_back(text.slice(begin, end));
            end = begin;
        }
    }
    MarkedText rest = text.slice(0, end);
    if (!separator) rest = strip(budget, rest, nullptr, false, true);
    if (separator || !rest.empty()) out.push_back(std::move(rest));
    std::reverse(out.begin(), out.end());
    return out;
}

std::vector<MarkedText> split_lines(Budget& budget, const MarkedText& text, bool keep_ends) {
    budget.make(text.size());
    const std::string& bytes = text.bytes();
    std::vector<MarkedText> out;
    for (std::size_t pos = 0; pos < bytes.size();) {
        budget.hold(1);
        std::size_t end = pos;
        while (end < bytes.size() && !ends_line(char_at(bytes, end).code)) {
            end += char_at(bytes, end).size;
        }
        std::size_t next = end;
        if (next < bytes.size()) {
            const bool pair = bytes.compare(next, 2, "\r\n") == 0;
            next += pair ? 2 : char_at(bytes, next).size;
        }
        out.push_back(text.slice(pos, keep_ends ? next : end));
        pos = next;
    }
    return out;
}

// A replacement of user text counts as user text, even if the template wrote it.
MarkedText replace(Budget& budget, const MarkedText& text, const MarkedText& old,
                   const MarkedText& with, std::int64_t most) {
    const std::string& bytes = text.bytes();
    MarkedText out;
    std::int64_t done = 0;
    std::size_t pos = 0;
    const auto put = [&](std::size_t begin, std::size_t end) {
        budget.make(with.size());
        if (text.any_user(begin, end)) {
            out.append(with.bytes(), true);
        } else {
            out.append(with);
        }
        ++done;
    };
    budget.make(bytes.size());
    while (most < 0 || done < most) {
        if (old.empty()) {  // before every character, and at the end
            const std::size_t end = pos < bytes.size() ? pos + char_at(bytes, pos).size : pos;
            put(pos > 0 ? pos - 1 : 0, end);
            if (pos >= bytes.size()) break;
            out.append(text, pos, end);
            pos = end;
            continue;
        }
        const std::size_t found = bytes.find(old.bytes(), pos);
        if (found == std::string::npos) break;
        out.append(text, pos, found);
        put(found, found + old.size());
        pos = found + old.size();
    }
    out.append(text, pos, bytes.size());
    return out;
}

MarkedText join(Budget& budget, const MarkedText& separator, const std::vector<MarkedText>& parts) {
    MarkedText out;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        budget.make(separator.size() + parts[i].size());
        if (i > 0) out.append(separator);
        out.append(parts[i]);
    }
    return out;
}

MarkedText padded(Budget& budget, const MarkedText& text, std::int64_t width, Align align,
                  const MarkedText& fill) {
    const auto size = static_cast<std::int64_t>(char_count(budget, text));
    if (width <= size) return text;
    const auto missing = static_cast<std::size_t>(width - size);
    const std::size_t before = align == Align::left ? 0
                               : align == Align::middle
                                   ? missing / 2 + (missing & static_cast<std::size_t>(width) & 1)
                                   : missing;
    MarkedText out;
    const bool sign = align == Align::behind_sign &&
                      (text.bytes().starts_with('-') || text.bytes().starts_with('+'));
    if (sign) out.append(text, 0, 1);
    for (std::size_t i = 0; i < before; ++i) {
        budget.make(fill.size());
        out.append(fill);
    }
    out.append(text, sign ? 1 : 0, text.size());
    for (std::size_t i = before; i < missing; ++i) {
        budget.make(fill.size());
        out.append(fill);
    }
    return out;
}

MarkedText reversed(Budget& budget, const MarkedText& text) {
    budget.make(text.size());
    MarkedText out;
    for (std::size_t end = text.size(); end > 0;) {
        const std::size_t begin = char_before(text.bytes(), end);
        out.append(text, begin, end);
        end = begin;
    }
    return out;
}

}  // namespace mr::text::jinja
