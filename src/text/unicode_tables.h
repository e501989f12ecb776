// The tables of text/unicode.h; written by tools/unicode_tables.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "text/unicode.h"

namespace mr::text::tables {

// Ranges are inclusive at both ends; every table is sorted by its first field.
struct ClassRange {
    char32_t first, last;
    CharClass kind;
};
struct WordRange {
    char32_t first, last;
};
struct CombiningRange {
    char32_t first, last;
    std::uint8_t combining_class;
};
struct Decomposition {
    char32_t code, first, second;  // second is 0 if it maps to one code point
};
struct Composition {
    char32_t first, second, composed;
};

extern const ClassRange kClasses[];
extern const std::size_t kClasses_size;
extern const WordRange kWords[];
extern const std::size_t kWords_size;
extern const CombiningRange kCombining[];
extern const std::size_t kCombining_size;
extern const Decomposition kDecompositions[];
extern const std::size_t kDecompositions_size;
extern const Composition kCompositions[];  // sorted by (first, second)
extern const std::size_t kCompositions_size;

}  // namespace mr::text::tables
