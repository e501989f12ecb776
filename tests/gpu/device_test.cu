// Device basics: memory, copies and their ledger, graphs, stamps.
#include <stdexcept>

#include "core/cuda/kernel.cuh"
#include "core/cuda/testing.h"
#include "core/error.h"

namespace mr::cuda {
namespace {

__global__ void add_one(float* x, int count, Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) x[i] += 1;
    let_next_start();
}

class DeviceTest : public GpuTest {};

TEST_F(DeviceTest, CopiesAreCounted) {
    std::vector<float> values = normal(1000);
    const Tensor t = memory_.tensor(DType::f32, {1000});
    stream_->to_device(t.data, values.data(), t.bytes(), &ledger_);
    std::vector<float> back(1000);
    stream_->to_host(back.data(), t.data, 100, &ledger_);
    stream_->synchronize();
    EXPECT_EQ(ledger_.host_to_device().bytes, 4000u);
    EXPECT_EQ(ledger_.device_to_host().bytes, 100u);
    EXPECT_EQ(std::memcmp(values.data(), back.data(), 100), 0);
}

TEST_F(DeviceTest, AGraphReplaysWhatWasCapturedWithDependentLaunches) {
    std::vector<float> zero(5000, 0.0f);
    const Tensor t = upload(DType::f32, {5000}, zero);
    Timeline timeline(64);
    ctx_.timeline = &timeline;
    const Graph graph = Graph::capture(*stream_, [&] {
        for (int i = 0; i < 20; ++i) {
            Stamp* stamp = account(ctx_, OpKind::add, "add", {1, 20000, 20000, 5000, 0});
            launch(ctx_, dim3(20), dim3(256), 0, add_one, static_cast<float*>(t.data), 5000, stamp);
        }
    });
    EXPECT_EQ(graph.nodes(), 20u);
    for (int i = 0; i < 10; ++i) {
        timeline.reset(*stream_);
        graph.launch(*stream_);
    }
    for (const float v : download(t)) ASSERT_EQ(v, 200.0f);
    const std::vector<Stage> stages = timeline.read(*stream_);
    ASSERT_EQ(stages.size(), 20u);
    for (std::size_t i = 0; i < stages.size(); ++i) {
        EXPECT_GE(stages[i].work.seconds, 0) << i;
        EXPECT_LT(stages[i].work.seconds, 1e-3) << i;
        if (i > 0) {
            EXPECT_GE(stages[i].begin, stages[i - 1].begin) << i;
        }
    }
}

TEST_F(DeviceTest, ACaptureThatThrowsLeavesTheStreamUsable) {
    EXPECT_THROW(Graph::capture(*stream_, [] { throw std::runtime_error("no"); }),
                 std::runtime_error);
    std::vector<float> one(10, 1.0f);
    const Tensor t = upload(DType::f32, {10}, one);
    EXPECT_EQ(download(t)[9], 1.0f);
}

TEST_F(DeviceTest, MemoryThatIsNotThereIsOneClearError) {
    try {
        const DeviceArena arena("KV cache", std::size_t{1} << 50);
        FAIL() << "a petabyte was given";
    } catch (const OutOfMemory& error) {
        EXPECT_EQ(error.kind(), ErrorKind::device);
        EXPECT_NE(std::string(error.what()).find("KV cache"), std::string::npos) << error.what();
    }
}

TEST_F(DeviceTest, OnlyWantOfMemoryIsOutOfMemory) {
    EXPECT_THROW(call_failed(cudaErrorMemoryAllocation, "call", "file", 1), OutOfMemory);
    for (const cudaError_t status : {cudaErrorInvalidValue, cudaErrorLaunchFailure}) {
        try {
            call_failed(status, "call", "file", 1);
        } catch (const OutOfMemory&) {
            FAIL() << cudaGetErrorName(status);
        } catch (const Error& error) {
            EXPECT_EQ(error.exit_code(), 3);
            EXPECT_NE(std::string(error.what()).find(cudaGetErrorName(status)), std::string::npos);
        }
    }
}

}  // namespace
}  // namespace mr::cuda
