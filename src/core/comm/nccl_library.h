// The NCCL functions in use, from a library that is opened at first use. Include it only where the
// CUDA toolkit's headers are available; without nccl.h this header is empty.
#pragma once

#if __has_include(<nccl.h>)
#include <nccl.h>

// 2.18 is the first version in which all calls can be non-blocking.
#if NCCL_VERSION_CODE >= 21800
#define MR_HAS_NCCL 1

#include <string>

namespace mr::comm::nccl {

#define MR_NCCL_FUNCTIONS(F)  \
    F(ncclGetVersion)         \
    F(ncclGetErrorString)     \
    F(ncclGetLastError)       \
    F(ncclGetUniqueId)        \
    F(ncclCommInitRankConfig) \
    F(ncclCommGetAsyncError)  \
    F(ncclCommFinalize)       \
    F(ncclCommDestroy)        \
    F(ncclCommAbort)          \
    F(ncclGroupStart)         \
    F(ncclGroupEnd)           \
    F(ncclSend)               \
    F(ncclRecv)               \
    F(ncclAllReduce)

struct Library {
// NOLINTNEXTLINE(bugprone-macro-parentheses): it names a member
#define MR_MEMBER(name) decltype(&::name) name = nullptr;
    MR_NCCL_FUNCTIONS(MR_MEMBER)
#undef MR_MEMBER
    std::string about;  // name and version, or why NCCL is missing
    bool there = false;
};

// Opened once and never closed.
const Library& library();

}  // namespace mr::comm::nccl

#endif
#endif
