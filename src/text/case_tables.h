// The tables of text/letter_case.h; written by tools/case_tables.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mr::text::tables {

// Every `step`-th code point from first to last maps to itself plus delta. Sorted.
struct CaseRange {
    char32_t first, last;
    std::uint32_t step;
    std::int32_t delta;
};
// Mappings to several characters, or to a title case that differs from upper case. Sorted.
struct CaseWords {
    char32_t code;
    const char* mapped;  // UTF-8
};

extern const CaseRange kUpper[], kLower[];
extern const std::size_t kUpper_size, kLower_size;
extern const CaseWords kUpperWords[], kLowerWords[], kTitleWords[];
extern const std::size_t kUpperWords_size, kLowerWords_size, kTitleWords_size;

}  // namespace mr::text::tables
