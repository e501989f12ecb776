// The speed of the library's algorithms for the products of training, and which of them give the
// bits of the first. It helps to choose an algorithm.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "core/cuda/device.h"
#include "core/cuda/timer.h"
#include "ops/linear/train_product.h"

namespace mr::cuda {
namespace {

class Products {
  public:
    Products() : memory_("products", std::size_t{8} << 30) {
        ctx_.cuda = &stream_;
        std::uint32_t bits = 1;
        for (std::uint16_t& v : noise_) {  // bf16 of magnitude 0.5 to 2, either sign
            bits = bits * 1664525u + 1013904223u;
            v = static_cast<std::uint16_t>(0x3f00u | (bits >> 16 & 0x80ffu));
        }
    }
    void* noise(std::size_t elements) {
        auto* to = memory_.array<std::uint16_t>(elements);
        for (std::size_t done = 0; done < elements; done += noise_.size()) {
            const std::size_t some = std::min(noise_.size(), elements - done);
            stream_.to_device(to + done, noise_.data(), some * 2, nullptr);
        }
        stream_.synchronize();
        return to;
    }
    void measure(const char* name, TrainProduct p, bool accumulate, bool bias = false) {
        memory_.reset();
        const auto count = [](std::int64_t a, std::int64_t b) {
            return static_cast<std::size_t>(a * b);
        };
        p.a = noise(count(p.rows, p.sum));
        p.b = noise(count(p.sum, p.cols));
        p.a_stride = p.a_transposed ? p.rows : p.sum;
        p.b_stride = p.b_transposed ? p.sum : p.cols;
        p.out_stride = p.cols;
        const std::size_t bytes = dtype_bytes(p.out_type, count(p.rows, p.cols));
        p.out = memory_.alloc(bytes);
        p.c = accumulate ? p.out : nullptr;
        if (bias) p.bias = noise(2 * static_cast<std::size_t>(p.cols));  // enough for f32
        const std::span<std::byte> workspace{memory_.array<std::byte>(kTrainWorkspace),
                                             kTrainWorkspace};
        unsigned long long first = 0;
        for (int which = 0; which < kTrainCandidates; ++which) {
            stream_.fill(p.out, 0, bytes);
            if (!library_product(ctx_, p, workspace, which)) {
                if (which == 0) std::printf("%-28s the library has none\n", name);
                break;
            }
            const unsigned long long got = product_digest(ctx_, p, workspace);
            if (which == 0) first = got;
            const double seconds = seconds_per_call(
                stream_, 5, [&](int) { library_product(ctx_, p, workspace, which); }, 5, false);
            std::printf("%-28s %2d  %8.1f us  %6.1f TFLOP/s  %-5s  %s\n", name, which,
                        seconds * 1e6,
                        2e-12 * static_cast<double>(p.rows) * static_cast<double>(p.cols) *
                            static_cast<double>(p.sum) / seconds,
                        got == first ? "same" : "other", library_product_name(p, which).c_str());
        }
    }
    // A linear layer [n, k] on `tokens` tokens, forward and backward.
    void layer(const char* name, std::int64_t tokens, std::int64_t n, std::int64_t k,
               bool residual) {
        std::printf("%s: %lld tokens, n %lld, k %lld\n", name, static_cast<long long>(tokens),
                    static_cast<long long>(n), static_cast<long long>(k));
        TrainProduct p;
        p.rows = tokens, p.cols = n, p.sum = k, p.b_transposed = true;
        p.out_type = residual ? DType::f32 : DType::bf16;
        measure("  forward", p, residual);
        measure("  forward with bias", p, residual, true);
        p = {};
        p.rows = tokens, p.cols = k, p.sum = n;
        measure("  input", p, false);
        p = {};
        p.rows = n, p.cols = k, p.sum = tokens, p.a_transposed = true, p.out_type = DType::f32;
        measure("  weight", p, true);
    }

  private:
    Stream stream_;
    DeviceArena memory_;
    Context ctx_;
    std::vector<std::uint16_t> noise_ = std::vector<std::uint16_t>(1 << 20);
};

}  // namespace
}  // namespace mr::cuda

// bench_linear_train_cuda [gpt2|llama]: both by default.
int main(int argc, char** argv) {
    const std::string only = argc > 1 ? argv[1] : "";
    mr::cuda::Products p;
    if (only != "llama") {
        std::puts("GPT-2 124M, 32 x 1024 tokens");
        p.layer("qkv", 32768, 2304, 768, false);
        p.layer("out", 32768, 768, 768, true);
        p.layer("up", 32768, 3072, 768, false);
        p.layer("down", 32768, 768, 3072, true);
        p.layer("head", 5312, 50304, 768, false);
    }
    if (only != "gpt2") {
        std::puts("Llama 1.1B, 16 x 2048 tokens");
        p.layer("qkv", 32768, 2560, 2048, false);
        p.layer("out", 32768, 2048, 2048, true);
        p.layer("gate and up", 32768, 11264, 2048, false);
        p.layer("down", 32768, 2048, 5632, true);
        p.layer("head", 8192, 32000, 2048, false);
    }
}
