// The product of a warp group (four warps, sm_90a): D [64, N] += A [64, 16] B [16, N], where A lies
// in registers or in shared memory and B in shared memory, T = bf16 or __half, D in f32. It runs
// asynchronously: between multiply_begin() and multiply_wait() no thread may touch the registers of
// D or A. For other devices the code compiles and is never launched.
//
// Thread 4 g + c of warp w holds of D, for n = 0 .. N / 8 - 1:
//   d[4 n], d[4 n + 1]      row 16 w + g,     columns 8 n + 2 c and the next
//   d[4 n + 2], d[4 n + 3]  row 16 w + g + 8, the same columns
// and of A, in registers of two values: a[0] row g, columns 2 c ..; a[1] row g + 8; a[2] row g,
// columns 2 c + 8 ..; a[3] row g + 8, columns 2 c + 8 ... So D, packed, is the A of a next product.
#pragma once

#include <type_traits>

#include "core/cuda/kernel.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MR_WARP_GROUPS 1
#endif

namespace mr::cuda {

// A matrix in shared memory as TMA writes it with the 128-byte swizzle: columns of 64 values (128
// bytes) by any multiple of 8 rows, each such panel at a multiple of 1024 bytes.
//
// "By rows": the sum runs along the 128 bytes. 16 columns further: 32 bytes further.
__device__ __forceinline__ std::uint64_t rows_descriptor(unsigned address) {
    return std::uint64_t{(address & 0x3ffff) >> 4} | (std::uint64_t{1} << 16) |
           (std::uint64_t{1024 >> 4} << 32) | (std::uint64_t{1} << 62);
}
// "By columns" (transposed): the sum runs along the rows; panels of 64 columns lie `panel` bytes
// apart. 16 rows further: 2048 bytes further.
__device__ __forceinline__ std::uint64_t columns_descriptor(unsigned address, unsigned panel) {
    return std::uint64_t{(address & 0x3ffff) >> 4} | (std::uint64_t{panel >> 4} << 16) |
           (std::uint64_t{1024 >> 4} << 32) | (std::uint64_t{1} << 62);
}
// Adds `bytes` (% 16 == 0) to the descriptor's address, which is in the low half.
__device__ __forceinline__ std::uint64_t further(std::uint64_t descriptor, int bytes) {
    const auto low =
        static_cast<std::uint32_t>(descriptor) + static_cast<std::uint32_t>(bytes >> 4);
    return (descriptor & 0xffffffff00000000u) | low;
}

// Call it before the first product after writes to the registers of D or A.
__device__ __forceinline__ void multiply_begin() {
#ifdef MR_WARP_GROUPS
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
// Ends a group of products.
__device__ __forceinline__ void multiply_commit() {
#ifdef MR_WARP_GROUPS
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Waits until all groups but the last kPending are done.
template <int kPending>
__device__ __forceinline__ void multiply_wait() {
#ifdef MR_WARP_GROUPS
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}
// A fence for the compiler on these registers. After multiply_wait() it keeps reads from moving
// before the wait; before multiply_wait() it keeps computations from moving after it.
template <int kCount>
__device__ __forceinline__ void keep_order(float (&d)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// multiply<T>(d, a, b, add): D = A B + (add ? D : 0), N from the size of d. kByColumnsA and
// kByColumnsB say which descriptors are transposed.

#define MR_WG_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define MR_WG_NAMES_16 \
    MR_WG_NAMES_8      \
    ", "               \
    "%8, %9, %10, %11, %12, %13, %14, %15"
#define MR_WG_NAMES_24 \
    MR_WG_NAMES_16     \
    ", "               \
    "%16, %17, %18, %19, %20, %21, %22, %23"
#define MR_WG_NAMES_32 \
    MR_WG_NAMES_24     \
    ", "               \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define MR_WG_NAMES_40 \
    MR_WG_NAMES_32     \
    ", "               \
    "%32, %33, %34, %35, %36, %37, %38, %39"
#define MR_WG_NAMES_48 \
    MR_WG_NAMES_40     \
    ", "               \
    "%40, %41, %42, %43, %44, %45, %46, %47"
#define MR_WG_NAMES_56 \
    MR_WG_NAMES_48     \
    ", "               \
    "%48, %49, %50, %51, %52, %53, %54, %55"
#define MR_WG_NAMES_64 \
    MR_WG_NAMES_56     \
    ", "               \
    "%56, %57, %58, %59, %60, %61, %62, %63"
#define MR_WG_NAMES_72 \
    MR_WG_NAMES_64     \
    ", "               \
    "%64, %65, %66, %67, %68, %69, %70, %71"
#define MR_WG_NAMES_80 \
    MR_WG_NAMES_72     \
    ", "               \
    "%72, %73, %74, %75, %76, %77, %78, %79"
#define MR_WG_NAMES_88 \
    MR_WG_NAMES_80     \
    ", "               \
    "%80, %81, %82, %83, %84, %85, %86, %87"
#define MR_WG_NAMES_96 \
    MR_WG_NAMES_88     \
    ", "               \
    "%88, %89, %90, %91, %92, %93, %94, %95"
#define MR_WG_NAMES_104 \
    MR_WG_NAMES_96      \
    ", "                \
    "%96, %97, %98, %99, %100, %101, %102, %103"
#define MR_WG_NAMES_112 \
    MR_WG_NAMES_104     \
    ", "                \
    "%104, %105, %106, %107, %108, %109, %110, %111"
#define MR_WG_NAMES_120 \
    MR_WG_NAMES_112     \
    ", "                \
    "%112, %113, %114, %115, %116, %117, %118, %119"
#define MR_WG_NAMES_128 \
    MR_WG_NAMES_120     \
    ", "                \
    "%120, %121, %122, %123, %124, %125, %126, %127"
#define MR_WG_REGS_8 \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define MR_WG_REGS_16                                                                         \
    MR_WG_REGS_8, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), \
        "+f"(d[14]), "+f"(d[15])
#define MR_WG_REGS_24                                                                            \
    MR_WG_REGS_16, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), \
        "+f"(d[22]), "+f"(d[23])
#define MR_WG_REGS_32                                                                            \
    MR_WG_REGS_24, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
        "+f"(d[30]), "+f"(d[31])
#define MR_WG_REGS_40                                                                            \
    MR_WG_REGS_32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), \
        "+f"(d[38]), "+f"(d[39])
#define MR_WG_REGS_48                                                                            \
    MR_WG_REGS_40, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), \
        "+f"(d[46]), "+f"(d[47])
#define MR_WG_REGS_56                                                                            \
    MR_WG_REGS_48, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), \
        "+f"(d[54]), "+f"(d[55])
#define MR_WG_REGS_64                                                                            \
    MR_WG_REGS_56, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), \
        "+f"(d[62]), "+f"(d[63])
#define MR_WG_REGS_72                                                                            \
    MR_WG_REGS_64, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), \
        "+f"(d[70]), "+f"(d[71])
#define MR_WG_REGS_80                                                                            \
    MR_WG_REGS_72, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), \
        "+f"(d[78]), "+f"(d[79])
#define MR_WG_REGS_88                                                                            \
    MR_WG_REGS_80, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), \
        "+f"(d[86]), "+f"(d[87])
#define MR_WG_REGS_96                                                                            \
    MR_WG_REGS_88, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), \
        "+f"(d[94]), "+f"(d[95])
#define MR_WG_REGS_104                                                                             \
    MR_WG_REGS_96, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), \
        "+f"(d[102]), "+f"(d[103])
#define MR_WG_REGS_112                                                                    \
    MR_WG_REGS_104, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), \
        "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define MR_WG_REGS_120                                                                    \
    MR_WG_REGS_112, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), \
        "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define MR_WG_REGS_128                                                                    \
    MR_WG_REGS_120, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), \
        "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

// %R, %R + 1, ... are the operands after the registers of D.
#define MR_WG_SHARED(N, R, TYPE, A, B, ADD, TA, TB)                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD                             \
                 ", 0;\n"                                                            \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE     \
                 " {" MR_WG_NAMES_##R "}, " A ", " B ", p, 1, 1, " TA ", " TB ";\n}" \
                 : MR_WG_REGS_##R                                                    \
                 : "l"(a), "l"(b), "r"(add), "n"(kByColumnsA), "n"(kByColumnsB))
#define MR_WG_REGISTERS(N, R, TYPE, A0, A1, A2, A3, B, ADD, TB)                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD                                         \
                 ", 0;\n"                                                                        \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                 \
                 " {" MR_WG_NAMES_##R "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B ", p, 1, 1, " TB \
                                      ";\n}"                                                     \
                 : MR_WG_REGS_##R                                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kByColumnsB))

#ifdef MR_WARP_GROUPS
#define MR_WG_PRODUCT(N, R, I0, I1, I2, I3, I4, I5, I6)                                      \
    template <typename T, int kByColumnsA = 0, int kByColumnsB = 0>                          \
    __device__ __forceinline__ void multiply(float(&d)[R], std::uint64_t a, std::uint64_t b, \
                                             int add) {                                      \
        if constexpr (std::is_same_v<T, bf16>) {                                             \
            MR_WG_SHARED(N, R, "bf16", I0, I1, I2, I3, I4);                                  \
        } else {                                                                             \
            MR_WG_SHARED(N, R, "f16", I0, I1, I2, I3, I4);                                   \
        }                                                                                    \
    }                                                                                        \
    template <typename T, int kByColumnsB = 0>                                               \
    __device__ __forceinline__ void multiply(float(&d)[R], const std::uint32_t(&a)[4],       \
                                             std::uint64_t b, int add) {                     \
        if constexpr (std::is_same_v<T, bf16>) {                                             \
            MR_WG_REGISTERS(N, R, "bf16", I0, I1, I2, I3, I4, I5, I6);                       \
        } else {                                                                             \
            MR_WG_REGISTERS(N, R, "f16", I0, I1, I2, I3, I4, I5, I6);                        \
        }                                                                                    \
    }
#else
#define MR_WG_PRODUCT(N, R, I0, I1, I2, I3, I4, I5, I6)                                         \
    template <typename T, int kByColumnsA = 0, int kByColumnsB = 0>                             \
    __device__ __forceinline__ void multiply(float(&)[R], std::uint64_t, std::uint64_t, int) {} \
    template <typename T, int kByColumnsB = 0>                                                  \
    __device__ __forceinline__ void multiply(float(&)[R], const std::uint32_t(&)[4],            \
                                             std::uint64_t, int) {}
#endif

MR_WG_PRODUCT(16, 8, "%8", "%9", "%10", "%11", "%12", "%13", "%14")
MR_WG_PRODUCT(32, 16, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
MR_WG_PRODUCT(48, 24, "%24", "%25", "%26", "%27", "%28", "%29", "%30")
MR_WG_PRODUCT(64, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
MR_WG_PRODUCT(80, 40, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
MR_WG_PRODUCT(96, 48, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
MR_WG_PRODUCT(112, 56, "%56", "%57", "%58", "%59", "%60", "%61", "%62")
MR_WG_PRODUCT(128, 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
MR_WG_PRODUCT(144, 72, "%72", "%73", "%74", "%75", "%76", "%77", "%78")
MR_WG_PRODUCT(160, 80, "%80", "%81", "%82", "%83", "%84", "%85", "%86")
MR_WG_PRODUCT(176, 88, "%88", "%89", "%90", "%91", "%92", "%93", "%94")
MR_WG_PRODUCT(192, 96, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
MR_WG_PRODUCT(208, 104, "%104", "%105", "%106", "%107", "%108", "%109", "%110")
MR_WG_PRODUCT(224, 112, "%112", "%113", "%114", "%115", "%116", "%117", "%118")
MR_WG_PRODUCT(240, 120, "%120", "%121", "%122", "%123", "%124", "%125", "%126")
MR_WG_PRODUCT(256, 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134")

#undef MR_WG_PRODUCT
#undef MR_WG_SHARED
#undef MR_WG_REGISTERS

#undef MR_WG_NAMES_8
#undef MR_WG_REGS_8
#undef MR_WG_NAMES_16
#undef MR_WG_REGS_16
#undef MR_WG_NAMES_24
#undef MR_WG_REGS_24
#undef MR_WG_NAMES_32
#undef MR_WG_REGS_32
#undef MR_WG_NAMES_40
#undef MR_WG_REGS_40
#undef MR_WG_NAMES_48
#undef MR_WG_REGS_48
#undef MR_WG_NAMES_56
#undef MR_WG_REGS_56
#undef MR_WG_NAMES_64
#undef MR_WG_REGS_64
#undef MR_WG_NAMES_72
#undef MR_WG_REGS_72
#undef MR_WG_NAMES_80
#undef MR_WG_REGS_80
#undef MR_WG_NAMES_88
#undef MR_WG_REGS_88
#undef MR_WG_NAMES_96
#undef MR_WG_REGS_96
#undef MR_WG_NAMES_104
#undef MR_WG_REGS_104
#undef MR_WG_NAMES_112
#undef MR_WG_REGS_112
#undef MR_WG_NAMES_120
#undef MR_WG_REGS_120
#undef MR_WG_NAMES_128
#undef MR_WG_REGS_128

}  // namespace mr::cuda
