#include "core/comm/device_link.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "core/cuda/check.h"
#include "core/error.h"

namespace mr::comm {
namespace {

// Device to host, rank to rank, host to device, one after the other. The calling thread waits;
// other streams compute meanwhile.
class HostLink : public DeviceLink {
  public:
    explicit HostLink(Comm& comm) : comm_(comm) {}
    std::string name() const override { return "messages through pinned host memory"; }

    void exchange(const cuda::Stream& stream, std::span<const DevicePiece> out,
                  std::span<const DevicePiece> in) override {
        stream.synchronize();  // the last upload may still be reading the buffer
        const std::vector<std::byte*> left = places(out, out_), arrived = places(in, in_);
        for (std::size_t i = 0; i < out.size(); ++i) {
            if (out[i].bytes > 0) stream.to_host(left[i], out[i].data, out[i].bytes, nullptr);
        }
        stream.synchronize();
        Transfers transfers(comm_);
        for (std::size_t i = 0; i < in.size(); ++i) {
            transfers.receive(in[i].rank, {arrived[i], in[i].bytes});
        }
        for (std::size_t i = 0; i < out.size(); ++i) {
            transfers.send(out[i].rank, {left[i], out[i].bytes});
        }
        transfers.finish();
        for (std::size_t i = 0; i < in.size(); ++i) {
            if (in[i].bytes > 0) stream.to_device(in[i].data, arrived[i], in[i].bytes, nullptr);
        }
    }
    void wait(const cuda::Event& event) override { event.synchronize(); }

  private:
    static std::vector<std::byte*> places(std::span<const DevicePiece> pieces,
                                          cuda::PinnedBuffer& memory) {
        std::size_t bytes = 0;
        for (const DevicePiece& piece : pieces) bytes += cuda::DeviceArena::padded(piece.bytes);
        if (memory.size() < bytes) memory = cuda::PinnedBuffer(bytes);
        std::vector<std::byte*> out;
        std::byte* at = memory.data();
        for (const DevicePiece& piece : pieces) {
            out.push_back(at);
            at += cuda::DeviceArena::padded(piece.bytes);
        }
        return out;
    }

    Comm& comm_;
    cuda::PinnedBuffer out_, in_;
};

// Identifies a device across all nodes.
struct DeviceId {
    std::array<char, 16> uuid{};
    std::array<char, 64> host{};
    bool nccl = false;
    bool operator==(const DeviceId& other) const {
        return uuid == other.uuid && host == other.host;
    }
};

DeviceId this_device() {
    DeviceId out;
    cudaDeviceProp properties{};
    MR_CUDA_CALL(cudaGetDeviceProperties(&properties, 0));
    std::memcpy(out.uuid.data(), &properties.uuid, out.uuid.size());
    gethostname(out.host.data(), out.host.size() - 1);
    out.nccl = why_no_nccl().empty();
    return out;
}

}  // namespace

void DeviceLink::add_up(const cuda::Stream&, void*, std::int64_t) {
    MR_CHECK(false, "this link has a sum of its own");
}

std::unique_ptr<DeviceLink> host_link(Comm& comm) { return std::make_unique<HostLink>(comm); }

std::unique_ptr<DeviceLink> device_link(Comm& comm) {
    const DeviceId mine = this_device();
    std::vector<DeviceId> all(static_cast<std::size_t>(comm.size()));
    comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    bool direct = std::ranges::all_of(all, &DeviceId::nccl);
    for (auto at = all.begin(); at != all.end(); ++at) {
        direct = direct && std::find(at + 1, all.end(), *at) == all.end();
    }
    return direct ? nccl_link(comm) : host_link(comm);
}

}  // namespace mr::comm
