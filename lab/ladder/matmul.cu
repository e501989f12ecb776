#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "core/cuda/device.h"
#include "core/cuda/kernel.cuh"
#include "lab/ladder/matmul.h"
#include "model/names.h"

namespace mr::ladder {
namespace {

// One warp per row: its lanes walk along the row, then add up.
__global__ void matmul_kernel(float* out, const float* x, const float* w, int n, int k) {
    const int row = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (row >= n) return;
    const float* from = w + static_cast<std::size_t>(row) * static_cast<std::size_t>(k);
    float sum = 0;
    for (int i = lane; i < k; i += 32) sum = fmaf(from[i], x[i], sum);
    sum = cuda::warp_sum(sum);
    if (lane == 0) out[row] = sum;
}

constexpr int kThreads = 256;

std::size_t bytes_of(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float); }

// Shared by the three: a stream, the kernel, and timing.
class DeviceMatmul : public Matmul {
  protected:
    void launch(float* out, const float* x, const float* w, int n, int k) {
        const int blocks = (n + kThreads / 32 - 1) / (kThreads / 32);
        matmul_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream_.raw()>>>(out, x, w, n,
                                                                                     k);
        MR_CUDA_CALL(cudaGetLastError());
    }

    // Marks on the stream: 0 copies to the device, 1 kernel, 2 copies back, 3 done.
    void mark(int i) {
        if (split) stream_.record(events_[i]);
    }
    // Waits for the result, and adds the times between the marks.
    void finish() {
        stream_.synchronize();
        if (!split) return;
        split->copies += events_[1].seconds_since(events_[0]);
        split->kernels += events_[2].seconds_since(events_[1]);
        split->copies += events_[3].seconds_since(events_[2]);
    }

    cuda::Stream stream_;
    cuda::Event events_[4] = {cuda::Event(true), cuda::Event(true), cuda::Event(true),
                              cuda::Event(true)};
};

class CopyPerMatmul final : public DeviceMatmul {
  public:
    void multiply(float* out, const float* x, const float* w, int n, int k) override {
        std::optional<cuda::DeviceArena> w_memory, x_memory, out_memory;
        timed([&] {
            w_memory.emplace("w", bytes_of(std::int64_t{n} * k));
            x_memory.emplace("x", bytes_of(k));
            out_memory.emplace("out", bytes_of(n));
        });
        auto* d_w = reinterpret_cast<float*>(w_memory->data());
        auto* d_x = reinterpret_cast<float*>(x_memory->data());
        auto* d_out = reinterpret_cast<float*>(out_memory->data());
        mark(0);
        stream_.to_device(d_w, w, bytes_of(std::int64_t{n} * k), &ledger);
        stream_.to_device(d_x, x, bytes_of(k), &ledger);
        mark(1);
        launch(d_out, d_x, d_w, n, k);
        mark(2);
        stream_.to_host(out, d_out, bytes_of(n), &ledger);
        mark(3);
        finish();
        timed([&] {
            w_memory.reset();
            x_memory.reset();
            out_memory.reset();
        });
    }

  private:
    template <typename Work>
    void timed(Work&& work) {
        const auto start = std::chrono::steady_clock::now();
        work();
        if (!split) return;
        split->memory +=
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
};

// Buffers for x and out of any product of a model, on both sides.
struct Vectors {
    explicit Vectors(const model::Model& model) {
        for (const model::RoleAt at : model::roles_of(model.spec)) {
            if (!model::is_matrix(at.role)) continue;
            const Tensor& w = model::role_slot(model.weights, at);
            most_w = std::max(most_w, w.shape.count());
            most_x = std::max(most_x, w.cols());
            most_out = std::max(most_out, w.rows());
        }
        pinned_x = cuda::PinnedBuffer(bytes_of(most_x));
        pinned_out = cuda::PinnedBuffer(bytes_of(most_out));
        memory = cuda::DeviceArena("x and out", cuda::DeviceArena::padded(bytes_of(most_x)) +
                                                    cuda::DeviceArena::padded(bytes_of(most_out)));
        x = memory.array<float>(static_cast<std::size_t>(most_x));
        out = memory.array<float>(static_cast<std::size_t>(most_out));
    }

    std::int64_t most_w = 0, most_x = 0, most_out = 0;  // elements
    cuda::PinnedBuffer pinned_x, pinned_out;
    cuda::DeviceArena memory;
    float* x = nullptr;  // on the device, as is out
    float* out = nullptr;
};

class Preallocated final : public DeviceMatmul {
  public:
    explicit Preallocated(const model::Model& model)
        : vectors_(model), w_memory_("w", bytes_of(vectors_.most_w)) {}

    void multiply(float* out, const float* x, const float* w, int n, int k) override {
        auto* d_w = reinterpret_cast<float*>(w_memory_.data());
        std::memcpy(vectors_.pinned_x.data(), x, bytes_of(k));
        mark(0);
        stream_.to_device(d_w, w, bytes_of(std::int64_t{n} * k), &ledger);
        stream_.to_device(vectors_.x, vectors_.pinned_x.data(), bytes_of(k), &ledger);
        mark(1);
        launch(vectors_.out, vectors_.x, d_w, n, k);
        mark(2);
        stream_.to_host(vectors_.pinned_out.data(), vectors_.out, bytes_of(n), &ledger);
        mark(3);
        finish();
        std::memcpy(out, vectors_.pinned_out.data(), bytes_of(n));
    }

  private:
    Vectors vectors_;
    cuda::DeviceArena w_memory_;  // for the largest matrix
};

class ResidentWeights final : public DeviceMatmul {
  public:
    explicit ResidentWeights(const model::Model& model) : vectors_(model) {
        std::size_t bytes = 0;
        for_each_matrix(model,
                        [&](const Tensor& w) { bytes += cuda::DeviceArena::padded(w.bytes()); });
        memory_ = cuda::DeviceArena("weights", bytes);
        for_each_matrix(model, [&](const Tensor& w) {
            auto* there = static_cast<float*>(memory_.alloc(w.bytes()));
            stream_.to_device(there, w.data, w.bytes(), &ledger);
            on_device_[w.f32()] = there;
        });
        stream_.synchronize();
    }

    void multiply(float* out, const float* x, const float* w, int n, int k) override {
        std::memcpy(vectors_.pinned_x.data(), x, bytes_of(k));
        mark(0);
        stream_.to_device(vectors_.x, vectors_.pinned_x.data(), bytes_of(k), &ledger);
        mark(1);
        launch(vectors_.out, vectors_.x, on_device_.at(w), n, k);
        mark(2);
        stream_.to_host(vectors_.pinned_out.data(), vectors_.out, bytes_of(n), &ledger);
        mark(3);
        finish();
        std::memcpy(out, vectors_.pinned_out.data(), bytes_of(n));
    }

  private:
    template <typename Take>
    static void for_each_matrix(const model::Model& model, Take&& take) {
        for (const model::RoleAt at : model::roles_of(model.spec)) {
            if (model::is_matrix(at.role)) take(model::role_slot(model.weights, at));
        }
    }

    Vectors vectors_;
    cuda::DeviceArena memory_;
    std::unordered_map<const float*, const float*> on_device_;  // by its host address
};

}  // namespace

std::unique_ptr<Matmul> copy_per_matmul() { return std::make_unique<CopyPerMatmul>(); }
std::unique_ptr<Matmul> preallocated(const model::Model& model) {
    return std::make_unique<Preallocated>(model);
}
std::unique_ptr<Matmul> resident_weights(const model::Model& model) {
    return std::make_unique<ResidentWeights>(model);
}

}  // namespace mr::ladder
