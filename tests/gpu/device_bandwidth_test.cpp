// The measured ceilings that GPU results are compared with must be plausible.
#include "observe/device_bandwidth.h"

#include "core/cuda/testing.h"

namespace mr::observe {
namespace {

class DeviceBandwidth : public cuda::GpuTest {};

TEST_F(DeviceBandwidth, LiesWithinWhatGpusCanDo) {
    const Ceilings c = measure_device();
    RecordProperty("read_gb_s", std::to_string(c.read / 1e9));
    std::printf("read %.1f, copy %.1f, to device %.1f, to host %.1f GB/s, matrix %.1f TFLOP/s\n",
                c.read / 1e9, c.copy / 1e9, c.to_device / 1e9, c.to_host / 1e9, c.matrix / 1e12);
    // From the slowest supported GPU (GDDR6 on a narrow bus) to more than any datasheet.
    EXPECT_GT(c.read, 50e9);
    EXPECT_LT(c.read, 10e12);
    EXPECT_GT(c.copy, 50e9);
    EXPECT_LT(c.copy, 1.1 * c.read);  // writing is never faster than reading
    EXPECT_GT(c.to_device, 0.5e9);    // less than one lane of PCIe 3
    EXPECT_LT(c.to_device, 1e12);
    EXPECT_GT(c.to_host, 0.5e9);
    EXPECT_LT(c.to_host, 1e12);
    EXPECT_LT(c.to_device, c.read);
    EXPECT_GT(c.matrix, 5e12);
    EXPECT_LT(c.matrix, 5e15);
}

TEST_F(DeviceBandwidth, IsUnderTheDatasheetsOfKnownChips) {
    struct Known {
        const char* name;
        double bytes, flops;  // per second, dense bf16
    };
    // NVIDIA's datasheets.
    constexpr Known kKnown[] = {{"NVIDIA H200", 4.8e12, 989.5e12},
                                {"H100 80GB HBM3", 3.36e12, 989.5e12},
                                {"A100-SXM4-80GB", 2.04e12, 312e12},
                                {"L40S", 864e9, 362.1e12},
                                {"T4", 320e9, 65e12}};
    const std::string name = cuda::device()->name;
    for (const Known& known : kKnown) {
        if (name.find(known.name) == std::string::npos) continue;
        const Ceilings& c = device_ceilings();
        EXPECT_LE(c.read, known.bytes) << name;
        EXPECT_GE(c.read, 0.8 * known.bytes) << name;  // if less, the measurement is the limit
        EXPECT_GE(c.copy, 0.7 * known.bytes) << name;
        EXPECT_LE(c.matrix, 1.02 * known.flops) << name;  // clocks may boost a little
        // Code for older GPUs uses their matrix instructions, which are half as fast on this one.
        if (cuda::device()->sm < cuda::device()->capability) return;
        EXPECT_GE(c.matrix, 0.5 * known.flops) << name;
        return;
    }
    GTEST_SKIP() << "no datasheet here for " << name;
}

TEST_F(DeviceBandwidth, SmallBuffersGiveNoCeilingOfMemory) {
    const Ceilings c = measure_device(std::size_t{1} << 20);  // any L2 holds it
    EXPECT_EQ(c.read, 0);
    EXPECT_EQ(c.copy, 0);
    EXPECT_GT(c.to_device, 0);
}

TEST_F(DeviceBandwidth, IsMeasuredOnce) {
    EXPECT_EQ(&device_ceilings(), &device_ceilings());
    EXPECT_GT(device_ceilings().read, 0);
}

}  // namespace
}  // namespace mr::observe
