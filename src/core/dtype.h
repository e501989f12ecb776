// Element types and the block layouts of quantised ones (GGUF's, on disk and in memory).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace mr {

enum class DType : std::uint8_t {
    f32,
    f16,
    bf16,  // floating point
    q8_0,
    q4_0,
    q4_1,
    q5_0,
    q5_1,  // blocks of 32
    q4_k,
    q5_k,
    q6_k,  // super-blocks of 256
    i8,
    i16,
    i32,
    i64,
    u8,
    f64,  // seen in files, not computed with
    q8_0x4,
    q4_0x4,  // never in files: 4 rows interleaved, as some kernels read them (ops/linear)
    q8_0x8,
    q4_0x8,  // ... 8 rows, as the GPU's tensor cores want them
};

struct DTypeInfo {
    const char* name;
    int block;        // elements per block; 1 where not quantised
    int block_bytes;  // bytes per block
};

constexpr DTypeInfo dtype_info(DType type) {
    switch (type) {
        case DType::f32:
            return {"f32", 1, 4};
        case DType::f16:
            return {"f16", 1, 2};
        case DType::bf16:
            return {"bf16", 1, 2};
        case DType::q8_0:
            return {"q8_0", 32, 34};
        case DType::q4_0:
            return {"q4_0", 32, 18};
        case DType::q4_1:
            return {"q4_1", 32, 20};
        case DType::q5_0:
            return {"q5_0", 32, 22};
        case DType::q5_1:
            return {"q5_1", 32, 24};
        case DType::q4_k:
            return {"q4_k", 256, 144};
        case DType::q5_k:
            return {"q5_k", 256, 176};
        case DType::q6_k:
            return {"q6_k", 256, 210};
        case DType::i8:
            return {"i8", 1, 1};
        case DType::i16:
            return {"i16", 1, 2};
        case DType::i32:
            return {"i32", 1, 4};
        case DType::i64:
            return {"i64", 1, 8};
        case DType::u8:
            return {"u8", 1, 1};
        case DType::f64:
            return {"f64", 1, 8};
        case DType::q8_0x4:
            return {"q8_0x4", 32, 34};
        case DType::q4_0x4:
            return {"q4_0x4", 32, 18};
        case DType::q8_0x8:
            return {"q8_0x8", 32, 34};
        case DType::q4_0x8:
            return {"q4_0x8", 32, 18};
    }
    return {"?", 1, 0};
}

constexpr const char* dtype_name(DType type) { return dtype_info(type).name; }
constexpr bool is_quantised(DType type) { return dtype_info(type).block > 1; }
// Types that need no unpacking before arithmetic: f32, f16, bf16.
constexpr bool is_float(DType type) {
    return type == DType::f32 || type == DType::f16 || type == DType::bf16;
}

// Bytes of `count` elements; `count` must be a whole number of blocks.
constexpr std::size_t dtype_bytes(DType type, std::size_t count) {
    const DTypeInfo info = dtype_info(type);
    return count / static_cast<std::size_t>(info.block) *
           static_cast<std::size_t>(info.block_bytes);
}

// "q8_0" -> DType::q8_0; nothing for an unknown name.
constexpr std::optional<DType> dtype_from_name(std::string_view name) {
    for (int i = 0; i <= static_cast<int>(DType::f64); ++i) {
        if (name == dtype_name(static_cast<DType>(i))) return static_cast<DType>(i);
    }
    return std::nullopt;
}

}  // namespace mr
