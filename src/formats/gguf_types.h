// The numbers of GGUF: types of metadata values and of tensors.
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

// A type of tensors as ggml numbers and names it.
struct GgmlType {
    std::uint32_t number;
    const char* name;
    std::optional<DType> dtype;  // the type here, where it can be read
    std::uint32_t file_type;     // llama.cpp's number for a file that mostly holds it (llama_ftype)
};

// Null where ggml has no type of that number.
const GgmlType* find_ggml_type(std::uint32_t number);
// Of a type that GGUF weights have.
const GgmlType& ggml_type(DType dtype);

}  // namespace mr::formats
