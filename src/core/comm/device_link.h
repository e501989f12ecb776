// How ranks on GPUs give each other what lies in device memory: NCCL from device to device, or
// messages through pinned host memory where ranks share a device, which NCCL refuses, or where
// there is no NCCL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/comm/comm.h"
#include "core/cuda/device.h"

namespace mr::comm {

// Device memory that goes to a rank, or comes from it.
struct DevicePiece {
    int rank;
    void* data;
    std::size_t bytes;
};

class DeviceLink {
  public:
    virtual ~DeviceLink() = default;
    // As a line of a run names it: "NCCL 2.28.3".
    virtual std::string name() const = 0;
    // All pieces travel at once, behind what `stream` has so far and before what it gets next.
    // Every rank calls it with pieces that fit those of the others. Throws LostRank.
    virtual void exchange(const cuda::Stream& stream, std::span<const DevicePiece> out,
                          std::span<const DevicePiece> in) = 0;
    // Whether it has add_up().
    virtual bool adds_up() const { return false; }
    // x bf16 [count] becomes the sum over ranks, in an order that the library chooses.
    virtual void add_up(const cuda::Stream& stream, void* x, std::int64_t count);
    // Until `event`, which was recorded behind exchanges, has happened. Throws LostRank.
    virtual void wait(const cuda::Event& event) = 0;
};

// `comm` is this link's alone as long as it lives.
std::unique_ptr<DeviceLink> host_link(Comm& comm);

// Why NCCL cannot be used by this program on this machine; empty: it can.
std::string why_no_nccl();
// Every rank of `comm` calls it, each with a device of its own. Throws Error (device), LostRank.
std::unique_ptr<DeviceLink> nccl_link(Comm& comm);

// NCCL where all ranks have it and devices of their own, else through host memory; all ranks
// choose alike. `comm` as above.
std::unique_ptr<DeviceLink> device_link(Comm& comm);

// own[i], of rank `rank`, becomes the sum over ranks as tree_sum() adds them, and packed[i], where
// there is one. parts f32 [ranks - 1, count]: of the other ranks, in their order. ranks: a power of
// two from 2 to kMostDeviceRanks.
inline constexpr int kMostDeviceRanks = 4096;
struct SumPiece {
    float* own;
    const float* parts;
    float* packed;
    std::int64_t count;
};
void tree_sum(const cuda::Stream& stream, std::span<const SumPiece> pieces, int rank, int ranks);
// to bf16 [count] = from f32, rounded to nearest; and back.
void to_bf16(const cuda::Stream& stream, void* to, const float* from, std::int64_t count);
void to_f32(const cuda::Stream& stream, float* to, const void* from, std::int64_t count);

}  // namespace mr::comm
