// Where all blocks of a step of several tokens meet.
#pragma once

#include "ops/step/step_params.cuh"

namespace mr::cuda::step {

// All blocks arrive, then wait. The counter's top bit turns when the last one has come, and its
// other bits are then as they were: nobody needs to reset it. One thread of a block calls all of
// it.
class GridBarrier {
  public:
    // Before this block's first arrival, and after the kernels before this one.
    __device__ explicit GridBarrier(unsigned* counter) : counter_(counter), turned_(~top()) {}
    GridBarrier() = default;  // none
    // What the block wrote before a barrier of its own can be read by whoever has waited.
    __device__ void arrive() const {
        const unsigned step = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
        asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter_), "r"(step)
                     : "memory");
    }
    // A block that never comes (it found no room) ends the kernel after a minute: an error instead
    // of silence.
    __device__ void wait() {
        const long long begin = clock64();
        while (((top() ^ turned_) & 0x80000000u) != 0) {
            if (clock64() - begin > (1ll << 37)) __trap();
        }
        turned_ = ~turned_;
    }

  private:
    __device__ unsigned top() const {
        unsigned now;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter_) : "memory");
        return now;
    }
    unsigned* counter_ = nullptr;
    unsigned turned_ = 0;  // its top bit: what the counter's will be when all have come
};

// All threads that multiply.
__device__ __forceinline__ void meet(GridBarrier& grid) {
    if (threadIdx.x == 0) grid.wait();
    WarpsTeam<kMultiplying>{0, 1}.sync();
}

}  // namespace mr::cuda::step
