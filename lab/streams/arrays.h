// The memory of the measurement, on host and device.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/cuda/device.h"

namespace mr::streams {

class Arrays {
  public:
    // The same input for every run. Error (device) if the device's memory is too small.
    explicit Arrays(std::size_t count);

    std::size_t count() const { return count_; }
    std::size_t bytes() const { return count_ * sizeof(float); }
    const float* in(bool pinned) const { return pinned ? floats(pinned_in_) : in_.data(); }
    float* out(bool pinned) { return pinned ? floats(pinned_out_) : out_.data(); }
    const float* out(bool pinned) const { return pinned ? floats(pinned_out_) : out_.data(); }
    float* device() const { return device_; }  // [count]
    float* beside() const { return beside_; }  // [count], for concurrent work

    // Overwrites the outputs, and the device's array, with NaN. Nothing may run.
    void poison();
    // Makes the pageable output the reference for all others. Error (device) if samples of it
    // differ from the host's result.
    void expect(int iterations);
    // Error (device) naming `rung` if the output has other bits.
    void require_expected(bool pinned, const std::string& rung) const;
    const std::vector<float>& expected() const { return expected_; }

  private:
    static float* floats(const cuda::PinnedBuffer& buffer) {
        return reinterpret_cast<float*>(buffer.data());
    }

    std::size_t count_;
    std::vector<float> in_, out_, expected_;
    cuda::PinnedBuffer pinned_in_, pinned_out_;
    cuda::DeviceArena memory_;
    float *device_ = nullptr, *beside_ = nullptr;
};

// Error (device), naming `what`, at the first of `count` floats whose bits differ.
void require_same_bits(const float* got, const float* wanted, std::size_t count,
                       const std::string& what);

}  // namespace mr::streams
