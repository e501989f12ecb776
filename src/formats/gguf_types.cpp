#include "formats/gguf_types.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"

namespace mr::formats {
namespace {

constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", DType::f32, 0},
    {1, "F16", DType::f16, 1},
    {2, "Q4_0", DType::q4_0, 2},
    {3, "Q4_1", DType::q4_1, 3},
    {6, "Q5_0", DType::q5_0, 8},
    {7, "Q5_1", DType::q5_1, 9},
    {8, "Q8_0", DType::q8_0, 7},
    {12, "Q4_K", DType::q4_k, 15},
    {13, "Q5_K", DType::q5_k, 17},
    {14, "Q6_K", DType::q6_k, 18},
    {30, "BF16", DType::bf16, 32},
    // Not supported; named only for the error.
    {9, "Q8_1", {}, 0},
    {10, "Q2_K", {}, 0},
    {11, "Q3_K", {}, 0},
    {15, "Q8_K", {}, 0},
    {16, "IQ2_XXS", {}, 0},
    {17, "IQ2_XS", {}, 0},
    {18, "IQ3_XXS", {}, 0},
    {19, "IQ1_S", {}, 0},
    {20, "IQ4_NL", {}, 0},
    {21, "IQ3_S", {}, 0},
    {22, "IQ2_S", {}, 0},
    {23, "IQ4_XS", {}, 0},
    {24, "I8", {}, 0},
    {25, "I16", {}, 0},
    {26, "I32", {}, 0},
    {27, "I64", {}, 0},
    {28, "F64", {}, 0},
    {29, "IQ1_M", {}, 0},
    {34, "TQ1_0", {}, 0},
    {35, "TQ2_0", {}, 0},
    {39, "MXFP4", {}, 0},
};

}  // namespace

const char* gguf_type_name(GgufType type) {
    static constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                             "bool", "string", "array", "u64", "i64", "f64"};
    const auto index = static_cast<std::size_t>(type);
    return index < std::size(kNames) ? kNames[index] : "unknown";
}
std::uint64_t gguf_type_bytes(GgufType type) {
    switch (type) {
        case GgufType::u8:
        case GgufType::i8:
        case GgufType::boolean:
            return 1;
        case GgufType::u16:
        case GgufType::i16:
            return 2;
        case GgufType::u32:
        case GgufType::i32:
        case GgufType::f32:
            return 4;
        case GgufType::u64:
        case GgufType::i64:
        case GgufType::f64:
            return 8;
        case GgufType::string:
        case GgufType::array:
            return 0;
    }
    return 0;
}
bool is_integer(GgufType type) {
    switch (type) {
        case GgufType::u8:
        case GgufType::i8:
        case GgufType::u16:
        case GgufType::i16:
        case GgufType::u32:
        case GgufType::i32:
        case GgufType::u64:
        case GgufType::i64:
            return true;
        default:
            return false;
    }
}
const GgmlType* find_ggml_type(std::uint32_t number) {
    const auto* found = std::find_if(std::begin(kGgmlTypes), std::end(kGgmlTypes),
                                     [&](const GgmlType& t) { return t.number == number; });
    return found == std::end(kGgmlTypes) ? nullptr : found;
}

const GgmlType& ggml_type(DType dtype) {
    const auto* found = std::find_if(std::begin(kGgmlTypes), std::end(kGgmlTypes),
                                     [&](const GgmlType& t) { return t.dtype == dtype; });
    MR_CHECK(found != std::end(kGgmlTypes), "the type is one that GGUF weights have");
    return *found;
}

}  // namespace mr::formats
