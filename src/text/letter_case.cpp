#include "text/letter_case.h"

#include <algorithm>
#include <iterator>

#include "text/case_tables.h"
#include "text/unicode.h"

namespace mr::text {
namespace {

using tables::CaseRange;
using tables::CaseWords;

// The mapping of `code` in the ranges; itself if none has it.
char32_t by_range(const CaseRange* ranges, std::size_t size, char32_t code) {
    const CaseRange* end = ranges + size;
    const CaseRange* it = std::lower_bound(
        ranges, end, code, [](const CaseRange& r, char32_t c) { return r.last < c; });
    if (it == end || code < it->first || (code - it->first) % it->step != 0) return code;
    return static_cast<char32_t>(static_cast<std::int64_t>(code) + it->delta);
}

void append_mapped(std::string& out, const CaseRange* ranges, std::size_t ranges_size,
                   const CaseWords* words, std::size_t words_size, char32_t code) {
    const CaseWords* end = words + words_size;
    const CaseWords* it = std::lower_bound(
        words, end, code, [](const CaseWords& w, char32_t c) { return w.code < c; });
    if (it != end && it->code == code) {
        out += it->mapped;
    } else {
        append_utf8(out, by_range(ranges, ranges_size, code));
    }
}

}  // namespace

void append_upper(std::string& out, char32_t code) {
    append_mapped(out, tables::kUpper, tables::kUpper_size, tables::kUpperWords,
                  tables::kUpperWords_size, code);
}

void append_lower(std::string& out, char32_t code) {
    append_mapped(out, tables::kLower, tables::kLower_size, tables::kLowerWords,
                  tables::kLowerWords_size, code);
}

void append_title(std::string& out, char32_t code) {
    const tables::CaseWords* end = tables::kTitleWords + tables::kTitleWords_size;
    const auto* it = std::lower_bound(tables::kTitleWords, end, code,
                                      [](const CaseWords& w, char32_t c) { return w.code < c; });
    if (it != end && it->code == code) {
        out += it->mapped;
    } else {
        append_upper(out, code);
    }
}

bool has_case(char32_t code) {
    return by_range(tables::kUpper, tables::kUpper_size, code) != code ||
           by_range(tables::kLower, tables::kLower_size, code) != code;
}

}  // namespace mr::text
