#include "ops/quant/quant.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/half.h"

namespace mr::ops {
namespace {

using Byte = unsigned char;

constexpr std::uint16_t kHalfNan = 0x7e00;

float load_half(const Byte* from) {
    std::uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    return f16_to_f32(bits);
}

void store_half(Byte* to, std::uint16_t bits) { std::memcpy(to, &bits, sizeof bits); }

// --- blocks of 32: scale, [minimum], [fifth bits], values. Low nibbles are elements 0 to 15,
// high nibbles 16 to 31. -------------------------------------------------------------------------

void expand_q8_0(const Byte* block, float* y) {
    const float d = load_half(block);
    for (int i = 0; i < 32; ++i)
        y[i] = d * static_cast<float>(static_cast<signed char>(block[2 + i]));
}

void expand_q4_0(const Byte* block, float* y) {
    const float d = load_half(block);
    for (int i = 0; i < 16; ++i) {
        y[i] = d * static_cast<float>((block[2 + i] & 15) - 8);
        y[i + 16] = d * static_cast<float>((block[2 + i] >> 4) - 8);
    }
}

void expand_q4_1(const Byte* block, float* y) {
    const float d = load_half(block), m = load_half(block + 2);
    for (int i = 0; i < 16; ++i) {
        y[i] = d * static_cast<float>(block[4 + i] & 15) + m;
        y[i + 16] = d * static_cast<float>(block[4 + i] >> 4) + m;
    }
}

// The fifth bit of element i is bit i of a 32-bit word.
int fifth_bit(const Byte* word, int i) { return ((word[i / 8] >> (i % 8)) & 1) << 4; }

void expand_q5_0(const Byte* block, float* y) {
    const float d = load_half(block);
    const Byte* high = block + 2;
    const Byte* low = block + 6;
    for (int i = 0; i < 16; ++i) {
        y[i] = d * static_cast<float>(((low[i] & 15) | fifth_bit(high, i)) - 16);
        y[i + 16] = d * static_cast<float>(((low[i] >> 4) | fifth_bit(high, i + 16)) - 16);
    }
}

void expand_q5_1(const Byte* block, float* y) {
    const float d = load_half(block), m = load_half(block + 2);
    const Byte* high = block + 4;
    const Byte* low = block + 8;
    for (int i = 0; i < 16; ++i) {
        y[i] = d * static_cast<float>((low[i] & 15) | fifth_bit(high, i)) + m;
        y[i + 16] = d * static_cast<float>((low[i] >> 4) | fifth_bit(high, i + 16)) + m;
    }
}

// --- super-blocks of 256 -------------------------------------------------------------------------

// Scale and minimum of sub-block j (of 8), six bits each, packed into 12 bytes: the first four of
// both lie in the low bits of bytes 0-7, the rest is split between bytes 8-11 and the top bits.
void scale_and_min(const Byte* packed, int j, int& scale, int& min) {
    if (j < 4) {
        scale = packed[j] & 63;
        min = packed[j + 4] & 63;
    } else {
        scale = (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4);
        min = (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4);
    }
}

// q4_k: d, dmin, 12 bytes of scales, 128 bytes of values; 32 bytes hold two sub-blocks of 32.
// q5_k: the same with 32 bytes of fifth bits before the values: bit j of byte i belongs to element
// i of sub-block j.
void expand_q45_k(const Byte* block, float* y, bool five) {
    const float d = load_half(block), dmin = load_half(block + 2);
    const Byte* packed = block + 4;
    const Byte* fifth = block + 16;
    const Byte* values = block + (five ? 48 : 16);
    for (int j = 0; j < 8; ++j) {
        int scale = 0, min = 0;
        scale_and_min(packed, j, scale, min);
        const float step = d * static_cast<float>(scale);
        const float least = dmin * static_cast<float>(min);
        const Byte* pair = values + j / 2 * 32;
        for (int i = 0; i < 32; ++i) {
            int q = j % 2 == 0 ? pair[i] & 15 : pair[i] >> 4;
            if (five) q |= ((fifth[i] >> j) & 1) << 4;
            y[j * 32 + i] = step * static_cast<float>(q) - least;
        }
    }
}

void expand_q4_k(const Byte* block, float* y) { expand_q45_k(block, y, false); }
void expand_q5_k(const Byte* block, float* y) { expand_q45_k(block, y, true); }

// q6_k: 128 bytes of low nibbles, 64 bytes of high pairs, 16 signed scales, d. Each half of 128
// elements is four runs of 32; run r takes the nibble of byte (r % 2) * 32 + i (low for r < 2) and
// bits 2r of high byte i. A scale serves 16 elements.
void expand_q6_k(const Byte* block, float* y) {
    const float d = load_half(block + 208);
    for (int half = 0; half < 2; ++half) {
        const Byte* low = block + half * 64;
        const Byte* high = block + 128 + half * 32;
        const Byte* scales = block + 192 + half * 8;
        for (int run = 0; run < 4; ++run) {
            for (int i = 0; i < 32; ++i) {
                const Byte byte = low[(run % 2) * 32 + i];
                const int nibble = run < 2 ? byte & 15 : byte >> 4;
                const int q = (nibble | (((high[i] >> (2 * run)) & 3) << 4)) - 32;
                const auto scale = static_cast<signed char>(scales[run * 2 + i / 16]);
                y[half * 128 + run * 32 + i] =
                    d * static_cast<float>(scale) * static_cast<float>(q);
            }
        }
    }
}

using Expand = void (*)(const Byte*, float*);

Expand expander(DType type) {
    switch (type) {
        case DType::q8_0:
            return expand_q8_0;
        case DType::q4_0:
            return expand_q4_0;
        case DType::q4_1:
            return expand_q4_1;
        case DType::q5_0:
            return expand_q5_0;
        case DType::q5_1:
            return expand_q5_1;
        case DType::q4_k:
            return expand_q4_k;
        case DType::q5_k:
            return expand_q5_k;
        case DType::q6_k:
            return expand_q6_k;
        default:
            return nullptr;
    }
}

// --- to blocks -----------------------------------------------------------------------------------

// The element of largest magnitude, the first of equals; false if one is not finite.
bool find_extreme(const float* x, float& extreme) {
    extreme = 0.0f;
    for (int i = 0; i < 32; ++i) {
        if (!std::isfinite(x[i])) return false;
        if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
    }
    return true;
}

void pack_nan(Byte* block, int bytes) {
    std::memset(block, 0, static_cast<std::size_t>(bytes));
    store_half(block, kHalfNan);
}

// Rounds to an integer in [low, high]. If the scale is so small that its inverse is infinite, x is
// arbitrary, and NaN becomes `otherwise`; the f16 scale is zero then, and so is the element.
int clamp_to_int(float x, int low, int high, int otherwise) {
    if (std::isnan(x)) return otherwise;
    if (x <= static_cast<float>(low)) return low;
    if (x >= static_cast<float>(high)) return high;
    return static_cast<int>(x);
}

void pack_q8_0(const float* x, Byte* block) {
    float extreme = 0;
    if (!find_extreme(x, extreme)) return pack_nan(block, 34);
    const float d = std::fabs(extreme) / 127.0f;
    const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
    store_half(block, f32_to_f16(d));
    for (int i = 0; i < 32; ++i) {
        const int q = clamp_to_int(std::round(x[i] * inverse), -127, 127, 0);  // halves away from 0
        block[2 + i] = static_cast<Byte>(static_cast<signed char>(q));
    }
}

void pack_q4_0(const float* x, Byte* block) {
    float extreme = 0;
    if (!find_extreme(x, extreme)) return pack_nan(block, 18);
    const float d = extreme / -8.0f;  // the extreme becomes -8, the widest of the sixteen
    const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
    store_half(block, f32_to_f16(d));
    // llama.cpp's x * inverse + 8.5f is fused by its compilers; in f64 the product is exact, which
    // gives that result on every machine.
    const auto level = [&](float value) {
        const double shifted = static_cast<double>(value) * static_cast<double>(inverse) + 8.5;
        return clamp_to_int(static_cast<float>(shifted), 0, 15, 8);
    };
    for (int i = 0; i < 16; ++i) {
        block[2 + i] = static_cast<Byte>(level(x[i]) | (level(x[i + 16]) << 4));
    }
}

}  // namespace

bool can_dequantize(DType type) { return is_float(type) || expander(type); }

bool can_quantize(DType type) {
    return is_float(type) || type == DType::q8_0 || type == DType::q4_0;
}

void dequantize(DType type, const void* src, float* dst, std::int64_t count) {
    const DTypeInfo info = dtype_info(type);
    MR_CHECK(can_dequantize(type), "the type is floating point or quantised");
    MR_CHECK(count >= 0 && count % info.block == 0, "the count is a whole number of blocks");
    const Byte* from = static_cast<const Byte*>(src);
    if (type == DType::f32) {
        if (count > 0) std::memcpy(dst, from, static_cast<std::size_t>(count) * sizeof(float));
    } else if (type == DType::f16) {
        for (std::int64_t i = 0; i < count; ++i) dst[i] = load_half(from + 2 * i);
    } else if (type == DType::bf16) {
        for (std::int64_t i = 0; i < count; ++i) {
            std::uint16_t bits;
            std::memcpy(&bits, from + 2 * i, sizeof bits);
            dst[i] = bf16_to_f32(bits);
        }
    } else {
        const Expand expand = expander(type);
        for (std::int64_t i = 0; i < count; i += info.block) {
            expand(from, dst + i);
            from += info.block_bytes;
        }
    }
}

bool can_hold(DType type, float value) {
    MR_CHECK(can_quantize(type), "the type is f32, f16, bf16, q8_0 or q4_0");
    if (!std::isfinite(value)) return true;
    const auto finite_f16 = [](float x) { return std::isfinite(f16_to_f32(f32_to_f16(x))); };
    if (type == DType::f16) return finite_f16(value);
    if (type == DType::bf16) return std::isfinite(bf16_to_f32(f32_to_bf16(value)));
    if (type == DType::q8_0) return finite_f16(value / 127.0f);
    if (type == DType::q4_0) return finite_f16(value / 8.0f);
    return true;
}

void quantize(DType type, const float* src, void* dst, std::int64_t count) {
    const DTypeInfo info = dtype_info(type);
    MR_CHECK(can_quantize(type), "the type is f32, f16, bf16, q8_0 or q4_0");
    MR_CHECK(count >= 0 && count % info.block == 0, "the count is a whole number of blocks");
    Byte* to = static_cast<Byte*>(dst);
    if (type == DType::f32) {
        if (count > 0) std::memcpy(to, src, static_cast<std::size_t>(count) * sizeof(float));
    } else if (type == DType::f16 || type == DType::bf16) {
        for (std::int64_t i = 0; i < count; ++i) {
            store_half(to + 2 * i, type == DType::f16 ? f32_to_f16(src[i]) : f32_to_bf16(src[i]));
        }
    } else {
        for (std::int64_t i = 0; i < count; i += info.block) {
            type == DType::q8_0 ? pack_q8_0(src + i, to) : pack_q4_0(src + i, to);
            to += info.block_bytes;
        }
    }
}

}  // namespace mr::ops
