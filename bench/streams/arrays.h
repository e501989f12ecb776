// The memory of the measurement, on both sides.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/cuda/device.h"

namespace mr::streams {

class Arrays {
  public:
    // The input, the same for every run. Error (device) where the device's memory does not suffice.
    explicit Arrays(std::size_t count);

    std::size_t count() const { return count_; }
    std::size_t bytes() const { return count_ * sizeof(float); }
    const float* in(bool pinned) const { return pinned ? floats(pinned_in_) : in_.data(); }
    float* out(bool pinned) { return pinned ? floats(pinned_out_) : out_.data(); }
    const float* out(bool pinned) const { return pinned ? floats(pinned_out_) : out_.data(); }
    float* device() const { return device_; }  // [count]
    float* beside() const { return beside_; }  // [count], for what runs at the same time

    // Makes what is in the outputs, and on the device, no result: NaN. Nothing may run.
    void poison();
    // Takes the pageable output for the result that others are compared with. Error (device) where
    // samples of it differ from what the host computes.
    void expect(int iterations);
    // Error (device), naming `rung`, where the output has other bits.
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
