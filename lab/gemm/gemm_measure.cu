#include <algorithm>
#include <utility>

#include "core/cuda/kernel.cuh"
#include "core/cuda/timer.h"
#include "core/error.h"
#include "lab/gemm/gemm_measure.h"
#include "ops/linear/gemm_cublaslt.h"
#include "ops/linear/gemm_cuda.h"
#include "ops/linear/tile_layout.h"

namespace mr::cuda {
namespace {

__device__ __forceinline__ unsigned hash(std::uint64_t i, unsigned seed) {
    std::uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + seed;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return static_cast<unsigned>(x >> 32);
}

// Uniform in (-1, 1).
template <typename T>
__global__ void fill_random(T* to, std::uint64_t count, unsigned seed) {
    const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
    for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
         i += step) {
        to[i] = from_f32<T>(static_cast<float>(static_cast<int>(hash(i, seed))) * 0x1p-31f);
    }
}

// Records with random quants and scales of 1/100.
__global__ void fill_tiles(unsigned char* to, std::uint64_t bytes, int record_bytes,
                           unsigned seed) {
    const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
    for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes;
         i += step) {
        const unsigned at = static_cast<unsigned>(i % static_cast<unsigned>(record_bytes));
        // 0x211f is 0.01 in f16
        const unsigned scale = at % 2 ? 0x21 : 0x1f;
        to[i] = static_cast<unsigned char>(at < ops::kTileQuantBytes ? hash(i, seed) : scale);
    }
}

constexpr int kCopies = 4;  // of the weights, used in turn, as a model's layers are

class Bench {
  public:
    explicit Bench(std::int64_t tokens) : tokens_(tokens) { ctx_.cuda = &stream_; }

    // `of_type` has the weights' type; the GEMM reads them in the compute type.
    GemmMeasured run(const GemmCase& shape, DType type, const GemmMeasureOptions& options) {
        prepare(shape, type);
        GemmMeasured out;
        out.shape = shape;
        out.type = type;
        out.tokens = tokens_;
        out.about = gemm_about(shape_);
        const auto product = [&](const std::vector<Tensor>& w, bool own) {
            return seconds_per_call(stream_, kCopies, [&](int i) {
                gemm(ctx_, out_, x_, w[static_cast<std::size_t>(i)], {},
                     shape.residual ? out_ : Tensor{}, {.own_kernel = own});
            });
        };
        out.seconds = product(weights_, false);
        out.product_seconds = out.seconds;
        if (ops::is_tiled(type)) {
            out.product_seconds = product(plain_, false);
            out.dequantize_seconds = seconds_per_call(stream_, kCopies, [&](int i) {
                gemm_dequantize(ctx_, plain_[static_cast<std::size_t>(i)],
                                weights_[static_cast<std::size_t>(i)]);
            });
        }
        compare(out, options.candidates);
        if (options.own) out.own_seconds = product(plain_, true);
        return out;
    }

  private:
    // All memory of one case. Tiled weights are also there in expanded form.
    void prepare(const GemmCase& shape, DType type) {
        const bool tiled = ops::is_tiled(type);
        const DType compute = tiled ? DType::bf16 : type;
        const DType out_type = shape.residual ? DType::f32 : compute;
        shape_ = {shape.n, shape.k, type, compute, out_type, false};
        const auto n = static_cast<std::size_t>(shape.n), k = static_cast<std::size_t>(shape.k);
        const std::size_t plain = DeviceArena::padded(dtype_bytes(compute, n * k));
        const std::size_t packed =
            tiled ? DeviceArena::padded(ops::tile_bytes(type, shape.n, shape.k)) : 0;
        const std::size_t scratch = DeviceArena::padded(gemm_scratch_bytes(shape_));
        const auto tokens = static_cast<std::size_t>(tokens_);
        const std::size_t x = DeviceArena::padded(dtype_bytes(compute, tokens * k));
        const std::size_t out = DeviceArena::padded(dtype_bytes(out_type, tokens * n));
        memory_ = {};
        memory_ = DeviceArena("gemm", kCopies * (plain + packed) + scratch + x + out);
        ctx_.scratch = {memory_.array<std::byte>(scratch), scratch};
        x_ = memory_.tensor(compute, {tokens_, shape.k});
        out_ = memory_.tensor(out_type, {tokens_, shape.n});
        randomise(x_, 1);
        stream_.fill(out_.data, 0, out_.bytes());
        plain_.clear();
        weights_.clear();
        for (int i = 0; i < kCopies; ++i) {
            plain_.push_back(memory_.tensor(compute, {shape.n, shape.k}));
            if (!tiled) {
                randomise(plain_.back(), static_cast<unsigned>(i + 2));
                continue;
            }
            const std::size_t bytes = ops::tile_bytes(type, shape.n, shape.k);
            auto* data = memory_.array<unsigned char>(bytes);
            fill_tiles<<<1024, 256, 0, stream_.raw()>>>(data, bytes, ops::tile_record_bytes(type),
                                                        static_cast<unsigned>(i + 2));
            MR_CUDA_CALL(cudaGetLastError());
            weights_.emplace_back(data, type, Shape{shape.n, shape.k});
            gemm_dequantize(ctx_, plain_.back(), weights_.back());
        }
        if (!tiled) weights_ = plain_;
        gemm_prepare(ctx_, shape_);
        stream_.synchronize();
    }

    void randomise(Tensor t, unsigned seed) {
        with_float_type(t.dtype, [&](auto example) {
            using T = decltype(example);
            fill_random<<<1024, 256, 0, stream_.raw()>>>(
                static_cast<T*>(t.data), static_cast<std::uint64_t>(t.shape.count()), seed);
            MR_CUDA_CALL(cudaGetLastError());
        });
    }

    // The time of the library's other algorithms for the same GEMM.
    void compare(GemmMeasured& out, int candidates) {
        out.best_seconds = out.product_seconds;
        out.best_about = out.about;
        if (!gemm_uses_library(shape_)) return;
        const cublaslt::Key key{shape_.n, shape_.k, shape_.x, shape_.out, false};
        const std::vector<cublaslt::Algorithm> all = cublaslt::algorithms(key);
        const int count = std::min(candidates, static_cast<int>(all.size()));
        for (int rank = 1; rank < count; ++rank) {
            const cublaslt::Algorithm& algorithm = all[static_cast<std::size_t>(rank)];
            const double seconds = seconds_per_call(stream_, kCopies, [&](int i) {
                cublaslt::matmul(ctx_, key, algorithm, tokens_, out_.data, x_.data,
                                 plain_[static_cast<std::size_t>(i)].data, nullptr,
                                 out.shape.residual ? out_.data : nullptr, ctx_.scratch);
            });
            if (seconds >= out.best_seconds) continue;
            out.best_seconds = seconds;
            out.best = rank;
            out.best_about = algorithm.str();
        }
    }

    std::int64_t tokens_;
    Stream stream_;
    Context ctx_;
    DeviceArena memory_;
    GemmShape shape_;
    Tensor x_, out_;
    std::vector<Tensor> weights_, plain_;  // kCopies of them
};

}  // namespace

GemmReport measure_gemm(const GemmMeasureOptions& options) {
    require_device();
    GemmReport report;
    {
        const GemmCase square{"", 8192, 8192, false};
        const GemmMeasured m =
            Bench(8192).run(square, DType::bf16, {.candidates = 4, .own = false});
        report.ceiling = m.flops() / m.best_seconds;
    }
    Bench bench(options.tokens);
    for (const DType type : options.types) {
        for (const GemmCase& shape : options.cases) {
            report.products.push_back(bench.run(shape, type, options));
        }
    }
    return report;
}

}  // namespace mr::cuda
