// include/millrace/attention.h gives the bits of the op for every call it can express.
#include <millrace/attention.h>

#include "ops/attention/flash/forward/testing.cuh"

namespace mr::cuda {
namespace {

using ops::AttentionMask;
using Kind = AttentionMask::Kind;
using ops::reference::Problem;

class FlashApiTest : public FlashForwardTest {
  protected:
    static millrace::Attention call_of(const Problem& p, const Device& d, DType dtype) {
        millrace::Attention call;
        call.type = dtype == DType::f32   ? millrace::AttentionType::f32
                    : dtype == DType::f16 ? millrace::AttentionType::f16
                                          : millrace::AttentionType::bf16;
        call.heads = p.heads;
        call.kv_heads = p.kv_heads;
        call.head_dim = p.head_dim;
        call.tokens_q = p.tokens_q();
        call.tokens_k = p.tokens_k();
        call.q = d.q.data;
        call.k = d.k.data;
        call.v = d.v.data;
        call.out = d.out.data;
        call.lse = d.lse.f32();
        call.cu_q = d.batch.cu_q;
        call.cu_k = d.batch.cu_k;
        call.sequences = d.batch.sequences;
        call.max_queries = d.batch.max_queries;
        call.max_keys = d.batch.max_keys;
        call.mask = p.mask.kind == Kind::full     ? millrace::AttentionMask::full
                    : p.mask.kind == Kind::causal ? millrace::AttentionMask::causal
                                                  : millrace::AttentionMask::block_causal;
        call.block = p.mask.block;
        call.window = p.mask.window;
        call.sinks = p.mask.sinks;
        call.origin = p.mask.origin;
        return call;
    }
    ops::FlashGradients gradients(const Device& d) {
        return {poisoned(d.q.dtype, d.q.shape), poisoned(d.k.dtype, d.k.shape),
                poisoned(d.k.dtype, d.k.shape)};
    }
};

TEST_F(FlashApiTest, ForwardHasTheBitsOfTheOp) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
        for (const AttentionMask& mask :
             {AttentionMask{Kind::full}, AttentionMask{Kind::causal},
              AttentionMask{Kind::block_causal, 16}, AttentionMask{Kind::causal, 1, 40, 2}}) {
            memory_.reset();
            const Problem p = random(4, 2, 64, {100, 33}, {100, 50}, mask, dtype);
            const Device d = device_copy(p, dtype);
            forward(Path::chosen, d, p);
            const std::vector<float> out = download(d.out), lse = download(d.lse);
            stream_->fill(d.out.data, 0xff, d.out.bytes());
            stream_->fill(d.lse.data, 0xff, d.lse.bytes());
            millrace::attention_forward(call_of(p, d, dtype), stream_->raw());
            EXPECT_EQ(download(d.out), out) << dtype_name(dtype);
            EXPECT_EQ(download(d.lse), lse) << dtype_name(dtype);
        }
    }
}

TEST_F(FlashApiTest, StridesAndEqualSequences) {
    // Every other token of tensors twice as wide; two sequences without lengths.
    const Problem p = random(2, 2, 128, {70, 70}, {90, 90}, {Kind::causal}, DType::bf16);
    const Device d = device_copy(p, DType::bf16);
    forward(Path::chosen, d, p);
    const std::vector<float> out = download(d.out);
    Problem wide = random(2, 2, 128, {140, 140}, {180, 180}, {Kind::causal}, DType::bf16);
    const std::size_t row = 2 * 128;
    const auto spread = [&](std::vector<double>& to, const std::vector<double>& from) {
        for (std::size_t i = 0; i < from.size(); ++i) to[i / row * 2 * row + i % row] = from[i];
    };
    spread(wide.q, p.q);
    spread(wide.k, p.k);
    spread(wide.v, p.v);
    const Device w = device_copy(wide, DType::bf16);
    millrace::Attention call = call_of(p, w, DType::bf16);
    call.cu_q = call.cu_k = nullptr;
    call.sequences = 2, call.max_queries = 70, call.max_keys = 90;
    call.q_stride = call.k_stride = call.v_stride = call.out_stride = 2 * row;
    millrace::attention_forward(call, stream_->raw());
    const std::vector<float> got = download(w.out);
    for (std::size_t i = 0; i < out.size(); ++i) {
        ASSERT_EQ(got[i / row * 2 * row + i % row], out[i]) << i;
        ASSERT_TRUE(std::isnan(got[i / row * 2 * row + row + i % row])) << i;
    }
}

TEST_F(FlashApiTest, BackwardHasTheBitsOfTheOp) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
        for (const int dim : {64, 80, 96, 128}) {
            for (const AttentionMask& mask :
                 {AttentionMask{Kind::full}, AttentionMask{Kind::causal},
                  AttentionMask{Kind::block_causal, 16}, AttentionMask{Kind::causal, 1, 40, 2}}) {
                memory_.reset();
                const Problem p = random(4, 2, dim, {100, 33}, {100, 50}, mask, dtype);
                const Device d = device_copy(p, dtype);
                forward(Path::chosen, d, p);
                std::vector<float> values(p.dout.begin(), p.dout.end());
                const Tensor dout = upload(dtype, d.q.shape, values);
                const ops::FlashGradients want = gradients(d), got = gradients(d);
                const millrace::Attention call = call_of(p, d, dtype);
                const std::size_t bytes = millrace::attention_backward_scratch_bytes(call);
                EXPECT_EQ(bytes, flash_backward_scratch_bytes(d.q, d.batch));
                ctx_.scratch = {memory_.array<std::byte>(bytes), bytes};
                flash_backward(ctx_, want, dout, d.q, d.k, d.v, d.out, d.lse, d.batch, p.mask,
                               ops::default_scale(dim));  // the call gives none
                millrace::attention_backward(call,
                                             {dout.data, got.dq.tensor.data, got.dk.tensor.data,
                                              got.dv.tensor.data, ctx_.scratch.data(), bytes},
                                             stream_->raw());
                EXPECT_EQ(download(got.dq.tensor), download(want.dq.tensor));
                EXPECT_EQ(download(got.dk.tensor), download(want.dk.tensor));
                EXPECT_EQ(download(got.dv.tensor), download(want.dv.tensor));
                if (HasFailure()) FAIL() << dtype_name(dtype) << " head_dim " << dim;
            }
        }
    }
}

// Equal sequences without lengths, tokens with gaps; the gradients have no gaps.
TEST_F(FlashApiTest, BackwardTakesStrides) {
    const Problem p = random(2, 2, 64, {70, 70}, {90, 90}, {Kind::causal}, DType::bf16);
    const Device d = device_copy(p, DType::bf16);
    forward(Path::chosen, d, p);
    std::vector<float> values(p.dout.begin(), p.dout.end());
    const Tensor dout = upload(DType::bf16, d.q.shape, values);
    const auto run = [&](const millrace::Attention& call) {
        const ops::FlashGradients to = gradients(d);
        const std::size_t bytes = millrace::attention_backward_scratch_bytes(call);
        millrace::attention_backward(call,
                                     {dout.data, to.dq.tensor.data, to.dk.tensor.data,
                                      to.dv.tensor.data, memory_.array<std::byte>(bytes), bytes},
                                     stream_->raw());
        std::vector<float> all = download(to.dq.tensor);
        for (const Tensor& t : {to.dk.tensor, to.dv.tensor}) {
            const std::vector<float> part = download(t);
            all.insert(all.end(), part.begin(), part.end());
        }
        return all;
    };
    millrace::Attention call = call_of(p, d, DType::bf16);
    const std::vector<float> want = run(call);
    const std::int64_t row = 2 * 64;
    const auto spread = [&](const Tensor& from) {
        const Tensor to = poisoned(DType::bf16, {from.dim(0), 2 * row});
        for (std::int64_t t = 0; t < from.dim(0); ++t) {
            stream_->on_device(static_cast<std::uint16_t*>(to.data) + 2 * t * row,
                               static_cast<const std::uint16_t*>(from.data) + t * row,
                               static_cast<std::size_t>(row) * 2);
        }
        return to.data;
    };
    call.q = spread(d.q), call.k = spread(d.k), call.v = spread(d.v), call.out = spread(d.out);
    call.q_stride = call.k_stride = call.v_stride = call.out_stride = 2 * row;
    call.cu_q = call.cu_k = nullptr;
    call.sequences = 2, call.max_queries = 70, call.max_keys = 90;
    EXPECT_EQ(run(call), want);
}

template <typename Body>
void expect_broken(const char* contract, Body&& body) {
    try {
        body();
        ADD_FAILURE() << "accepted: " << contract;
    } catch (const std::exception& error) {
        EXPECT_NE(std::string(error.what()).find(contract), std::string::npos) << error.what();
    }
}
void* further(const void* data, std::size_t bytes) {
    return static_cast<std::byte*>(const_cast<void*>(data)) + bytes;
}

TEST_F(FlashApiTest, BrokenContractsAreNamed) {
    const Problem p = random(2, 2, 64, {10}, {10}, {}, DType::bf16);
    const Device d = device_copy(p, DType::bf16);
    const Tensor dout = poisoned(DType::bf16, d.q.shape);
    const ops::FlashGradients to = gradients(d);
    using Call = millrace::Attention;
    using Gradients = millrace::AttentionGradients;
    const std::size_t bytes = millrace::attention_backward_scratch_bytes(call_of(p, d, d.q.dtype));
    const Gradients whole{dout.data,
                          to.dq.tensor.data,
                          to.dk.tensor.data,
                          to.dv.tensor.data,
                          memory_.array<std::byte>(bytes),
                          bytes};
    const auto broken_backward = [&](const char* contract, auto&& damage) {
        Gradients g = whole;
        damage(g);
        expect_broken(contract, [&] {
            millrace::attention_backward(call_of(p, d, DType::bf16), g, stream_->raw());
        });
    };
    const auto broken = [&](const char* contract, auto&& damage) {
        Call call = call_of(p, d, DType::bf16);
        damage(call);
        expect_broken(contract, [&] { millrace::attention_forward(call, stream_->raw()); });
        expect_broken(contract, [&] { millrace::attention_backward(call, whole, stream_->raw()); });
    };
    millrace::attention_forward(call_of(p, d, DType::bf16), stream_->raw());
    millrace::attention_backward(call_of(p, d, DType::bf16), whole, stream_->raw());
    broken("no null pointers", [](Call& c) { c.q = nullptr; });
    broken("no null pointers", [](Call& c) { c.out = nullptr; });
    broken("no null pointers", [](Call& c) { c.lse = nullptr; });
    broken("a multiple of 16 bytes", [](Call& c) { c.q = further(c.q, 8); });
    broken("a multiple of 16 bytes", [](Call& c) { c.v = further(c.v, 2); });
    broken("a multiple of 16 bytes", [](Call& c) { c.out = further(c.out, 4); });
    broken("a multiple of 4 bytes",
           [](Call& c) { c.lse = static_cast<float*>(further(c.lse, 2)); });
    broken("a multiple of 16 bytes apart", [](Call& c) { c.k_stride = 132; });
    broken("multiple of 8", [](Call& c) { c.head_dim = 36; });
    broken("multiple of kv_heads", [](Call& c) { c.kv_heads = 3; });
    broken("no less than heads", [](Call& c) { c.q_stride = 8; });
    broken("less than 2^38 elements", [](Call& c) { c.q_stride = std::int64_t{1} << 38; });
    broken("at most", [](Call& c) { c.max_queries = 0; });
    broken("scale is positive", [](Call& c) { c.scale = -1; });
    broken("the mask has a block", [](Call& c) { c.block = 0; });
    broken_backward("no null pointers", [](Gradients& g) { g.dout = nullptr; });
    broken_backward("no null pointers", [](Gradients& g) { g.dk = nullptr; });
    broken_backward("a multiple of 16 bytes", [](Gradients& g) { g.dq = further(g.dq, 8); });
    broken_backward("a multiple of 16 bytes", [](Gradients& g) { g.dv = further(g.dv, 8); });
    broken_backward("of device memory", [](Gradients& g) { g.scratch = nullptr; });
    broken_backward("of device memory", [](Gradients& g) { --g.scratch_bytes; });
    Call wide = call_of(p, d, DType::bf16);
    wide.head_dim = 256;
    expect_broken("to 128 backward", [&] { millrace::attention_backward_scratch_bytes(wide); });
    stream_->synchronize();
}

// Without a GPU: invalid types and masks are refused before anything else.
TEST(FlashApi, WordsOutOfRangeAreRefused) {
    millrace::Attention call;
    call.type = static_cast<millrace::AttentionType>(7);
    expect_broken("the type is", [&] { millrace::attention_forward(call, nullptr); });
    expect_broken("the type is", [&] { millrace::attention_backward_scratch_bytes(call); });
    call = {};
    call.mask = static_cast<millrace::AttentionMask>(-1);
    expect_broken("the mask is", [&] { millrace::attention_forward(call, nullptr); });
    expect_broken("the mask is", [&] { millrace::attention_backward(call, {}, nullptr); });
}

}  // namespace
}  // namespace mr::cuda
