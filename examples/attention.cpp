// usage: example_attention [TOKENS [HEADS [HEAD_DIM]]]: causal self-attention on raw device
// pointers and a stream, forward and backward, timed, and one row checked on the host.
#include <cuda_runtime_api.h>
#include <millrace/attention.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

namespace {

void check(cudaError_t status) {
    if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

// bf16 is the upper half of an f32.
std::uint16_t to_bf16(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float from_bf16(std::uint16_t half) {
    const std::uint32_t bits = std::uint32_t{half} << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

struct Buffer {
    explicit Buffer(std::size_t bytes) { check(cudaMalloc(&data, bytes)); }
    Buffer(const Buffer&) = delete;
    ~Buffer() { cudaFree(data); }
    void* data = nullptr;
};

}  // namespace

int main(int argc, char** argv) try {
    const int tokens = argc > 1 ? std::atoi(argv[1]) : 4096;
    const int heads = argc > 2 ? std::atoi(argv[2]) : 16;
    const int dim = argc > 3 ? std::atoi(argv[3]) : 128;
    if (tokens < 1 || heads < 1 || dim < 1) {
        throw std::invalid_argument("usage: example_attention [TOKENS [HEADS [HEAD_DIM]]]");
    }
    const std::size_t count = std::size_t(tokens) * std::size_t(heads) * std::size_t(dim);

    std::vector<std::uint16_t> host[4];  // q, k, v, dout
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (auto& x : host) {
        x.resize(count);
        for (auto& value : x) value = to_bf16(normal(random));
    }
    Buffer q(2 * count), k(2 * count), v(2 * count), out(2 * count), dout(2 * count);
    Buffer dq(2 * count), dk(2 * count), dv(2 * count);
    Buffer lse(4 * std::size_t(tokens) * std::size_t(heads));
    const Buffer* to[] = {&q, &k, &v, &dout};
    for (int i = 0; i < 4; ++i) {
        check(cudaMemcpy(to[i]->data, host[i].data(), 2 * count, cudaMemcpyHostToDevice));
    }

    millrace::Attention call;
    call.heads = call.kv_heads = heads;
    call.head_dim = dim;
    call.tokens_q = call.tokens_k = tokens;
    call.q = q.data;
    call.k = k.data;
    call.v = v.data;
    call.out = out.data;
    call.lse = static_cast<float*>(lse.data);
    const std::size_t scratch_bytes = millrace::attention_backward_scratch_bytes(call);
    Buffer scratch(scratch_bytes);
    const millrace::AttentionGradients gradients{dout.data, dq.data,      dk.data,
                                                 dv.data,   scratch.data, scratch_bytes};

    cudaStream_t stream;
    cudaEvent_t begin, middle, end;
    check(cudaStreamCreate(&stream));
    for (cudaEvent_t* event : {&begin, &middle, &end}) check(cudaEventCreate(event));
    for (int i = 0; i < 3; ++i) {  // the last one counts
        check(cudaEventRecord(begin, stream));
        millrace::attention_forward(call, stream);
        check(cudaEventRecord(middle, stream));
        millrace::attention_backward(call, gradients, stream);
        check(cudaEventRecord(end, stream));
        check(cudaEventSynchronize(end));
    }
    float forward_ms = 0, backward_ms = 0;
    check(cudaEventElapsedTime(&forward_ms, begin, middle));
    check(cudaEventElapsedTime(&backward_ms, middle, end));
    const double flops = 2.0 * tokens * tokens * heads * dim;
    std::printf(
        "%d tokens, %d heads of %d: forward %.3f ms (%.0f TFLOP/s), backward %.3f ms (%.0f "
        "TFLOP/s), %.1f MB besides the tensors\n",
        tokens, heads, dim, forward_ms, flops / forward_ms / 1e9, backward_ms,
        2.5 * flops / backward_ms / 1e9,
        (4.0 * tokens * heads + static_cast<double>(scratch_bytes)) / 1e6);

    // Checks the last query of the last head, in double; and the last key's dv, which only that
    // query sees: its weight times dout.
    std::vector<std::uint16_t> got(count), got_dv(count);
    check(cudaMemcpy(got.data(), out.data, 2 * count, cudaMemcpyDeviceToHost));
    check(cudaMemcpy(got_dv.data(), dv.data, 2 * count, cudaMemcpyDeviceToHost));
    const std::size_t row = count - std::size_t(dim), step = std::size_t(heads) * std::size_t(dim);
    std::vector<double> score(static_cast<std::size_t>(tokens)), want(std::size_t(dim), 0.0);
    double top = -INFINITY, sum = 0, worst = 0;
    for (std::size_t j = 0; j < score.size(); ++j) {
        for (std::size_t d = 0; d < want.size(); ++d) {
            score[j] += double{from_bf16(host[0][row + d])} *
                        from_bf16(host[1][step * (j + 1) - want.size() + d]) / std::sqrt(dim);
        }
        top = std::max(top, score[j]);
    }
    for (std::size_t j = 0; j < score.size(); ++j) {
        const double weight = std::exp(score[j] - top);
        sum += weight;
        for (std::size_t d = 0; d < want.size(); ++d) {
            want[d] += weight * from_bf16(host[2][step * (j + 1) - want.size() + d]);
        }
    }
    // Weights and results are rounded to bf16, a relative error of up to 2^-9: out, a mean of
    // values few of which are larger than 4, must be within 0.03; dv, one product, within 2^-6 of
    // itself.
    const double last_weight = std::exp(score.back() - top) / sum;
    double worst_dv = 0;
    const auto note = [](double& most, double error) {
        if (!(error <= most)) most = error;  // also for NaN
    };
    for (std::size_t d = 0; d < want.size(); ++d) {
        note(worst, std::abs(want[d] / sum - from_bf16(got[row + d])));
        const double want_dv = last_weight * from_bf16(host[3][row + d]);
        note(worst_dv, std::abs(want_dv - from_bf16(got_dv[row + d])) / (std::abs(want_dv) + 1e-9));
    }
    std::printf("the last row is off by at most %.5f, its key's dv by %.5f of itself\n", worst,
                worst_dv);
    return worst < 0.03 && worst_dv < 0x1p-6 ? 0 : 1;
} catch (const std::exception& error) {
    std::fprintf(stderr, "attention: %s\n", error.what());
    return 1;
}
