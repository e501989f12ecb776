// GGUF's numbers for the types of metadata values and of tensors.
#pragma once

#include <cstdint>
#include <optional>

#include "core/dtype.h"

namespace mr::formats {

// The types of metadata values, with the numbers they have in the file.
enum class GgufType : std::uint32_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    string,
    array,
    u64,
    i64,
    f64,
};

const char* gguf_type_name(GgufType type);
// Bytes of a value of fixed size; 0 for strings and arrays.
std::uint64_t gguf_type_bytes(GgufType type);
bool is_integer(GgufType type);

// A tensor type with ggml's number and name.
struct GgmlType {
    std::uint32_t number;
    const char* name;
    std::optional<DType> dtype;  // the corresponding DType, if supported
    std::uint32_t file_type;     // llama.cpp's number for a file that mostly holds it (llama_ftype)
};

// Null if ggml has no type of that number.
const GgmlType* find_ggml_type(std::uint32_t number);
// `dtype` must be one that GGUF supports for weights.
const GgmlType& ggml_type(DType dtype);

}  // namespace mr::formats
