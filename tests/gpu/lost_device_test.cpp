// Errors of a lost device. Needs no GPU.
#include <gtest/gtest.h>

#include <string>

#include "core/cuda/check.h"
#include "core/error.h"

namespace mr::cuda {
namespace {

// A test cannot remove the device, but it can raise the runtime's error for that.
TEST(LostDevice, IsOneLineAndExitCode3) {
    for (const cudaError_t status :
         {cudaErrorDevicesUnavailable, cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable,
          cudaErrorContained, cudaErrorHardwareStackError, cudaErrorSystemNotReady}) {
        const char* name = cudaGetErrorName(status);
        try {
            call_failed(status, "cudaStreamSynchronize(stream)", "forward.cu", 7);
        } catch (const Error& error) {
            const std::string line = error.what();
            EXPECT_EQ(error.exit_code(), 3) << name;
            EXPECT_NE(line.find(name), std::string::npos) << line;
            EXPECT_NE(line.find("is lost or taken"), std::string::npos) << line;
            EXPECT_NE(line.find("--device cpu"), std::string::npos) << line;
            EXPECT_EQ(line.find('\n'), std::string::npos) << line;
        }
    }
}

}  // namespace
}  // namespace mr::cuda
