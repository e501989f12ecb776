// Kernel faults: one line that says so, and exit code 3. A fault ends a process's use of the device
// for good, so each one happens in a child process.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/cuda/kernel.cuh"
#include "core/cuda/testing.h"
#include "core/error.h"
#include "decode/prompt.h"
#include "decode/session.h"
#include "gpu/engines.h"
#include "support.h"

// A block that waits for another one gives up after a minute of the device's clock. Here that clock
// runs 2^10 times as fast, only for the code under test: 2^27 cycles, less than a tenth of a
// second. (This has no effect elsewhere: all of it is inlined, and kernels of other files have
// their own.)
namespace mr::cuda {
__device__ __forceinline__ long long quick_clock() {
    return static_cast<long long>(static_cast<unsigned long long>(clock64()) << 10);
}
}  // namespace mr::cuda
#define clock64 ::mr::cuda::quick_clock
#include "core/cuda/signal.cuh"
#include "ops/step/step_kernel.cuh"
#undef clock64

namespace mr::cuda {
namespace {

__global__ void trap() { __trap(); }
__global__ void write_to(int* place) { *place = 1; }

// A word with tag 7, which block 1 sends if `sent`.
__global__ void one_word(Word* word, unsigned* out, bool sent) {
    if (blockIdx.x == 1) {
        if (sent) send(word, 42u, 7);
    } else {
        *out = receive_one(word, 7);
    }
}
// Two pairs of words, the last of which may be missing.
__global__ void four_words(Word* words, unsigned* out, bool sent) {
    if (blockIdx.x == 1) {
        for (int i = 0; i < (sent ? 4 : 3); ++i) send(words + i, 10u + static_cast<unsigned>(i), 7);
    } else {
        uint4 v[2];
        receive(v, 7, [&](int i) { return words + 2 * i; });
        *out = v[0].x + v[0].z + v[1].x + v[1].z;
    }
}
// All blocks meet, or wait for the first one, which does not come.
__global__ void meeting(unsigned* counter, unsigned* out, bool all) {
    step::GridBarrier grid(counter);
    if (all || blockIdx.x != 0) grid.arrive();
    grid.wait();
    atomicAdd(out, 1u);
}

// Ends like the command line program (src/cli/program.cpp).
template <typename Body>
[[noreturn]] void program(Body&& body) {
    try {
        body();
    } catch (const Error& error) {
        std::fprintf(stderr, "millrace: %s\n", error.what());
        std::exit(error.exit_code());
    }
    std::exit(0);
}
// One line, with the runtime's name of the error and what to do.
constexpr const char* kOneLine =
    "^millrace: CUDA = cudaError[A-Za-z]+: [^\n]+; start again; [^\n]*--device cpu[^\n]*\n$";

// Runs on one or several words of zeroed memory, and returns its result.
template <typename Kernel, typename T>
unsigned run_two_blocks(Kernel* kernel, T*, bool all) {
    const Stream stream;
    const DeviceArena memory("words", 4096);
    stream.fill(memory.data(), 0, memory.size());
    auto* out = reinterpret_cast<unsigned*>(memory.data() + 2048);
    kernel<<<2, 1, 0, stream.raw()>>>(reinterpret_cast<T*>(memory.data()), out, all);
    MR_CUDA_CALL(cudaGetLastError());
    unsigned result = 0;
    stream.to_host(&result, out, sizeof result, nullptr);
    stream.synchronize();
    return result;
}

class GpuFaultDeathTest : public testing::Test {
  protected:
    void SetUp() override {
        MR_NEED_GPU();
        // The child starts anew: after a fork, a device opened by the parent is unusable.
        GTEST_FLAG_SET(death_test_style, "threadsafe");
    }
};

TEST_F(GpuFaultDeathTest, ATrapIsOneLineAndExitCode3) {
    EXPECT_EXIT(program([] {
                    const Stream stream;
                    trap<<<1, 1, 0, stream.raw()>>>();
                    MR_CUDA_CALL(cudaGetLastError());
                    stream.synchronize();
                }),
                testing::ExitedWithCode(3), kOneLine);
}

TEST_F(GpuFaultDeathTest, AnAddressThatIsNotThereIsOneLineAndExitCode3) {
    EXPECT_EXIT(program([] {
                    const Stream stream;
                    write_to<<<1, 1, 0, stream.raw()>>>(nullptr);
                    MR_CUDA_CALL(cudaGetLastError());
                    stream.synchronize();
                }),
                testing::ExitedWithCode(3), kOneLine);
}

// During a generation, with tokens, a graph and pinned memory in use: the generation throws the
// error, nothing hangs, and everything can still be destroyed.
TEST_F(GpuFaultDeathTest, AFaultWhileTokensAreMadeIsOneLineAndExitCode3) {
    EXPECT_EXIT(program([] {
                    const auto engine = test::open_on_gpu(test::bundled_model());
                    decode::Session session(*engine);
                    decode::GenerateOptions options;
                    options.max_tokens = 400;
                    options.ignore_end = true;
                    const Stream beside;
                    int pieces = 0;
                    session.generate(decode::encode_prompt(engine->model(), "Once upon a time"),
                                     options, [&](std::string_view) {
                                         if (++pieces == 5) trap<<<1, 1, 0, beside.raw()>>>();
                                         return true;
                                     });
                }),
                testing::ExitedWithCode(3), kOneLine);
}

// ... and a second call after it gets the same error.
TEST_F(GpuFaultDeathTest, WhatComesAfterAFaultIsTheSameError) {
    EXPECT_EXIT(program([] {
                    const auto engine = test::open_on_gpu(test::bundled_model());
                    decode::Session session(*engine);
                    const std::vector<std::int32_t> prompt =
                        decode::encode_prompt(engine->model(), "Once");
                    decode::GenerateOptions options;
                    options.max_tokens = 4;
                    session.generate(prompt, options);
                    const Stream beside;
                    trap<<<1, 1, 0, beside.raw()>>>();
                    for (int i = 0; i < 2; ++i) {
                        try {
                            beside.synchronize();
                            return;
                        } catch (const Error& error) {
                            if (error.kind() != ErrorKind::device) return;
                        }
                    }
                    session.generate(prompt, options);
                }),
                testing::ExitedWithCode(3), kOneLine);
}

// The waits of a step in one kernel. Without a fault they end ...
TEST_F(GpuFaultDeathTest, WaitingEndsWhenTheOthersHaveCome) {
    EXPECT_EQ(run_two_blocks(one_word, static_cast<Word*>(nullptr), true), 42u);
    EXPECT_EQ(run_two_blocks(four_words, static_cast<Word*>(nullptr), true), 10u + 11 + 12 + 13);
    EXPECT_EQ(run_two_blocks(meeting, static_cast<unsigned*>(nullptr), true), 2u);
}
// ... and a block that never comes is an error, not a hang.
TEST_F(GpuFaultDeathTest, WaitingForAWordThatNeverComesEndsTheKernel) {
    EXPECT_EXIT(program([] { run_two_blocks(one_word, static_cast<Word*>(nullptr), false); }),
                testing::ExitedWithCode(3), kOneLine);
}
TEST_F(GpuFaultDeathTest, WaitingForOneOfSeveralWordsEndsTheKernel) {
    EXPECT_EXIT(program([] { run_two_blocks(four_words, static_cast<Word*>(nullptr), false); }),
                testing::ExitedWithCode(3), kOneLine);
}
TEST_F(GpuFaultDeathTest, WaitingForABlockThatNeverComesEndsTheKernel) {
    EXPECT_EXIT(program([] { run_two_blocks(meeting, static_cast<unsigned*>(nullptr), false); }),
                testing::ExitedWithCode(3), kOneLine);
}

}  // namespace
}  // namespace mr::cuda
