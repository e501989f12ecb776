// Kernel files (*_kernels.cpp) are compiled once per instruction path, each into its own namespace
// ROOM::<path>. Such a file includes nothing with inline code but simd/vec.h and intrinsics: an
// inline function shared with the rest of the program could be linked from the copy that was
// compiled for instructions this machine lacks.
//
// MR_KERNEL(void, rms_row, (float* out, const float* x, int n)) declares it in every namespace;
// MR_DISPATCH_IN(::mr::ops, rms_row)(out, x, n) calls the one of the active path. MR_PORTABLE_ONLY:
// there is no other path than the portable one (cmake/tsan.cmake).
#pragma once

#include "core/cpu.h"

#if defined(__aarch64__) && !defined(MR_PORTABLE_ONLY)
#define MR_KERNEL(result, name, args) \
    namespace portable {              \
    result name args;                 \
    }                                 \
    namespace neon_dot {              \
    result name args;                 \
    }                                 \
    namespace neon_i8mm {             \
    result name args;                 \
    }
#define MR_DISPATCH_IN(room, name)                                       \
    (::mr::active_isa() == ::mr::Isa::neon_i8mm  ? room::neon_i8mm::name \
     : ::mr::active_isa() == ::mr::Isa::neon_dot ? room::neon_dot::name  \
                                                 : room::portable::name)
#elif defined(__x86_64__) && !defined(MR_PORTABLE_ONLY)
#define MR_KERNEL(result, name, args) \
    namespace portable {              \
    result name args;                 \
    }                                 \
    namespace avx2 {                  \
    result name args;                 \
    }                                 \
    namespace avx512 {                \
    result name args;                 \
    }
#define MR_DISPATCH_IN(room, name)                                \
    (::mr::active_isa() == ::mr::Isa::avx512 ? room::avx512::name \
     : ::mr::active_isa() == ::mr::Isa::avx2 ? room::avx2::name   \
                                             : room::portable::name)
#else
#define MR_KERNEL(result, name, args) \
    namespace portable {              \
    result name args;                 \
    }
#define MR_DISPATCH_IN(room, name) (room::portable::name)
#endif
