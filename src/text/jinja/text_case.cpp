// Upper, lower and title case: the part of text_ops.h that needs Unicode's case mappings.
#include "text/jinja/text_ops.h"
#include "text/letter_case.h"
#include "text/unicode.h"

namespace mr::text::jinja {
namespace {

enum class Case { upper, lower, title, keep };

// Maps every character to the case that `choose(code, index)` returns.
template <class Choose>
MarkedText cased_text(Budget& budget, const MarkedText& text, Choose choose) {
    budget.make(text.size() * 2);
    const std::string& bytes = text.bytes();
    MarkedText out;
    std::string mapped;
    std::size_t index = 0;
    for (std::size_t i = 0; i < bytes.size(); ++index) {
        const Char c = char_at(bytes, i);
        const Case wanted = choose(c.code, index);
        if (wanted == Case::keep || c.code >= kBadByte) {
            out.append(text, i, i + c.size);
        } else {
            mapped.clear();
            if (wanted == Case::lower) append_lower(mapped, c.code);
            if (wanted == Case::upper) append_upper(mapped, c.code);
            if (wanted == Case::title) append_title(mapped, c.code);
            out.append(mapped, text.any_user(i, i + c.size));
        }
        i += c.size;
    }
    return out;
}

}  // namespace

MarkedText upper(Budget& budget, const MarkedText& text) {
    return cased_text(budget, text, [](char32_t, std::size_t) { return Case::upper; });
}

MarkedText lower(Budget& budget, const MarkedText& text) {
    return cased_text(budget, text, [](char32_t, std::size_t) { return Case::lower; });
}

MarkedText capitalize(Budget& budget, const MarkedText& text) {
    return cased_text(budget, text,
                      [](char32_t, std::size_t i) { return i == 0 ? Case::title : Case::lower; });
}

MarkedText title(Budget& budget, const MarkedText& text) {
    bool in_word = false;
    return cased_text(budget, text, [&](char32_t code, std::size_t) {
        const Case wanted = in_word ? Case::lower : Case::title;
        in_word = has_case(code);
        return wanted;
    });
}

MarkedText title_of_words(Budget& budget, const MarkedText& text) {
    bool in_word = false;
    return cased_text(budget, text, [&](char32_t code, std::size_t) {
        const bool between = is_space(code) || code == '-' || code == '(' || code == '{' ||
                             code == '[' || code == '<';
        const Case wanted = between ? Case::keep : in_word ? Case::lower : Case::upper;
        in_word = !between;
        return wanted;
    });
}

}  // namespace mr::text::jinja
