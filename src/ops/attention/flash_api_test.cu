// include/millrace/attention.h is the op, with the op's bits, for whatever it can say.
#include <millrace/attention.h>

#include "ops/attention/flash_forward_testing.cuh"

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
        return call;
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
    const Problem p = random(4, 2, 64, {100, 33}, {100, 50}, {Kind::causal}, DType::bf16);
    const Device d = device_copy(p, DType::bf16);
    forward(Path::chosen, d, p);
    std::vector<float> values(p.dout.begin(), p.dout.end());
    const Tensor dout = upload(DType::bf16, d.q.shape, values);
    const auto gradients = [&] {
        return ops::FlashGradients{poisoned(DType::bf16, d.q.shape),
                                   poisoned(DType::bf16, d.k.shape),
                                   poisoned(DType::bf16, d.k.shape)};
    };
    const ops::FlashGradients want = gradients(), got = gradients();
    millrace::Attention call = call_of(p, d, DType::bf16);
    const std::size_t bytes = millrace::attention_backward_scratch_bytes(call);
    EXPECT_EQ(bytes, flash_backward_scratch_bytes(d.q, d.k, d.batch));
    millrace::Attention wide = call;
    wide.head_dim = 256;
    EXPECT_THROW(millrace::attention_backward_scratch_bytes(wide), ContractError);
    ctx_.scratch = {memory_.array<std::byte>(bytes), bytes};
    flash_backward(ctx_, want, dout, d.q, d.k, d.v, d.out, d.lse, d.batch, p.mask,
                   static_cast<float>(p.scale));
    millrace::attention_backward(call,
                                 {dout.data, got.dq.tensor.data, got.dk.tensor.data,
                                  got.dv.tensor.data, ctx_.scratch.data(), bytes},
                                 stream_->raw());
    EXPECT_EQ(download(got.dq.tensor), download(want.dq.tensor));
    EXPECT_EQ(download(got.dk.tensor), download(want.dk.tensor));
    EXPECT_EQ(download(got.dv.tensor), download(want.dv.tensor));
}

TEST_F(FlashApiTest, BrokenContractsAreNamed) {
    const Problem p = random(2, 2, 64, {10}, {10}, {}, DType::bf16);
    const Device d = device_copy(p, DType::bf16);
    const auto expect_broken = [&](const char* contract, auto&& damage) {
        millrace::Attention call = call_of(p, d, DType::bf16);
        damage(call);
        try {
            millrace::attention_forward(call, stream_->raw());
            ADD_FAILURE() << "accepted: " << contract;
        } catch (const std::exception& error) {
            EXPECT_NE(std::string(error.what()).find(contract), std::string::npos) << error.what();
        }
    };
    expect_broken("no null pointers", [](millrace::Attention& c) { c.q = nullptr; });
    expect_broken("multiple of 8", [](millrace::Attention& c) { c.head_dim = 36; });
    expect_broken("no less than heads", [](millrace::Attention& c) { c.q_stride = 8; });
    expect_broken("at most", [](millrace::Attention& c) { c.max_queries = 0; });
    expect_broken("scale is positive", [](millrace::Attention& c) { c.scale = -1; });
}

}  // namespace
}  // namespace mr::cuda
