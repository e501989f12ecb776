// Exchange of device memory between ranks: NCCL from device to device, or messages through pinned
// host memory where ranks share a device (NCCL refuses that) or NCCL is missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/comm/comm.h"
#include "core/cuda/device.h"

namespace mr::comm {

// Device memory that is sent to a rank, or received from it.
struct DevicePiece {
    int rank;
    void* data;
    std::size_t bytes;
};

class DeviceLink {
  public:
    virtual ~DeviceLink() = default;
    // For the line a run prints: "NCCL 2.28.3".
    virtual std::string name() const = 0;
    // All pieces travel at once, after all work already on `stream` and before all that follows.
    // Every rank calls it with matching pieces. Throws LostRank.
    virtual void exchange(const cuda::Stream& stream, std::span<const DevicePiece> out,
                          std::span<const DevicePiece> in) = 0;
    // Whether it has add_up().
    virtual bool adds_up() const { return false; }
    // x bf16 [count] becomes the sum over ranks, in an order that NCCL chooses.
    virtual void add_up(const cuda::Stream& stream, void* x, std::int64_t count);
    // Waits for `event`, which was recorded after exchanges. Throws LostRank.
    virtual void wait(const cuda::Event& event) = 0;
};

// The link must be the only user of `comm` for its lifetime.
std::unique_ptr<DeviceLink> host_link(Comm& comm);

// Why NCCL cannot be used by this program on this machine; empty: it can.
std::string why_no_nccl();
// Every rank of `comm` calls it, each with a device of its own. Throws Error (device), LostRank.
std::unique_ptr<DeviceLink> nccl_link(Comm& comm);

// NCCL where all ranks have it and devices of their own, else host memory; all ranks make the same
// choice. `comm` as for host_link().
std::unique_ptr<DeviceLink> device_link(Comm& comm);

// own[i], of rank `rank`, becomes the sum over ranks in the order of tree_sum(); so does packed[i]
// if not null. parts f32 [ranks - 1, count]: the other ranks' values, in rank order. ranks: a power
// of two from 2 to kMostDeviceRanks.
inline constexpr int kMostDeviceRanks = 4096;
struct SumPiece {
    float* own;
    const float* parts;
    float* packed;
    std::int64_t count;
};
void tree_sum(const cuda::Stream& stream, std::span<const SumPiece> pieces, int rank, int ranks);
// to_bf16: to bf16 [count] = from f32 [count], rounded to nearest. to_f32: the reverse.
void to_bf16(const cuda::Stream& stream, void* to, const float* from, std::int64_t count);
void to_f32(const cuda::Stream& stream, float* to, const void* from, std::int64_t count);

}  // namespace mr::comm
