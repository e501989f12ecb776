#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "ops/linear/gemm_search.h"

namespace mr::cuda {
namespace {

// Elements of x and w: uniform in (-1, 1), so that every sum rounds at every step.
template <typename T>
__global__ void fill_noise(T* to, unsigned count, unsigned seed) {
    wait_for_previous();
    let_next_start();
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += gridDim.x * blockDim.x) {
        unsigned v = (i + seed) * 0x9e3779b9u;
        v = (v ^ v >> 16) * 0x85ebca6bu;
        v = (v ^ v >> 13) * 0xc2b2ae35u;
        to[i] = from_f32<T>(static_cast<float>(static_cast<int>(v ^ v >> 16)) * 0x1p-31f);
    }
}
__global__ void count_different(unsigned* different, const unsigned short* a,
                                const unsigned short* b, unsigned count) {
    wait_for_previous();
    let_next_start();
    unsigned mine = 0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += gridDim.x * blockDim.x) {
        mine += a[i] != b[i];
    }
    if (mine) atomicAdd(different, mine);
}

// A product that has the types and alignment of the key and fits into the workspace. k is long
// enough for another order of sums to show in many elements.
class Trial {
  public:
    Trial(const Context& ctx, const cublaslt::Key& shape) : ctx_(ctx) {
        const auto n = shape.n > 512 ? shape.n % 256 + 256 : shape.n;
        const auto k = shape.k > 4096 ? shape.k % 64 + 4096 : shape.k;
        key_ = {n, k, shape.in, shape.out, shape.bias};
        x_ = take(shape.in, kMostTokens, k);
        w_ = take(shape.in, n, k);
        bias_ = take(shape.out, 1, n);
        if (shape.out == DType::f32) residual_ = take(shape.out, kMostTokens, n);
        for (Tensor& out : out_) out = take(shape.out, kMostTokens, n);
        different_ = static_cast<unsigned*>(take(DType::f32, 1, 1).data);
        workspace_ = take(DType::f32, 1, cublaslt::kNoSums / 4);
        MR_CHECK(used_ <= cublaslt::kWorkspace, "a trial fits into the workspace");
        unsigned seed = 0;
        for (const Tensor& t : {x_, w_, bias_, residual_}) {
            if (!t) continue;
            with_float_type(t.dtype, [&](auto example) {
                using T = decltype(example);
                launch(ctx_, dim3(256), dim3(256), 0, fill_noise<T>, static_cast<T*>(t.data),
                       static_cast<unsigned>(t.shape.count()), seed += 1u << 28);
            });
        }
    }
    // Whether both accept this many tokens and give the same bits. Waits for the device.
    bool same(const cublaslt::Algorithm& a, const cublaslt::Algorithm& b, std::int64_t tokens) {
        for (const cublaslt::Algorithm* each : {&a, &b}) {
            if (each->workspace > cublaslt::kNoSums || !cublaslt::takes(key_, *each, tokens)) {
                return false;
            }
        }
        run(out_[0], a, tokens);
        run(out_[1], b, tokens);
        ctx_.cuda->fill(different_, 0, sizeof *different_);
        const std::size_t bytes = out_[0].slice_rows(0, tokens).bytes();
        launch(ctx_, dim3(256), dim3(256), 0, count_different, different_,
               static_cast<const unsigned short*>(out_[0].data),
               static_cast<const unsigned short*>(out_[1].data), static_cast<unsigned>(bytes / 2));
        unsigned different = 1;
        ctx_.cuda->to_host(&different, different_, sizeof different, ctx_.ledger);
        ctx_.cuda->synchronize();
        return different == 0;
    }

  private:
    static constexpr std::int64_t kMostTokens = cublaslt::kSteps.back();
    Tensor take(DType type, std::int64_t rows, std::int64_t cols) {
        const Tensor t(ctx_.scratch.data() + used_, type, {rows, cols});
        used_ += DeviceArena::padded(t.bytes());
        return t;
    }
    void run(Tensor out, const cublaslt::Algorithm& algorithm, std::int64_t tokens) {
        ctx_.cuda->fill(out.data, 0xff, out.bytes());
        cublaslt::matmul(ctx_, key_, algorithm, tokens, out.data, x_.data, w_.data,
                         key_.bias ? bias_.data : nullptr, residual_.data,
                         {static_cast<std::byte*>(workspace_.data), workspace_.bytes()});
    }

    const Context& ctx_;
    cublaslt::Key key_;
    Tensor x_, w_, bias_, residual_, out_[2], workspace_;
    unsigned* different_ = nullptr;
    std::size_t used_ = 0;
};

bool capturing(const Context& ctx) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    MR_CUDA_CALL(cudaStreamIsCapturing(ctx.cuda->raw(), &status));
    return status != cudaStreamCaptureStatusNone;
}

}  // namespace

void search_steps(const Context& ctx, const cublaslt::Key& key) {
    MR_CHECK(key.in != DType::f32, "the product is of f16 or bf16");
    const cublaslt::Algorithm* any = cublaslt::algorithm(key);
    if (!any || capturing(ctx) || !cublaslt::begin_search(key)) return;
    Trial trial(ctx, key);
    for (std::size_t step = 0; step < cublaslt::kSteps.size(); ++step) {
        const std::int64_t tokens = cublaslt::kSteps[step];
        for (const cublaslt::Algorithm& candidate : cublaslt::algorithms(key, 2, tokens)) {
            if (!trial.same(*any, candidate, tokens)) continue;
            cublaslt::adopt(key, step, candidate);
            break;
        }
    }
}

}  // namespace mr::cuda
