#include "ops.h"
#include "ops/sample/rows_cuda.h"
#include "ops/sample/sample.h"

namespace mr::python {
namespace {

struct CpuRows {
    std::int64_t vocab;
    static std::size_t bytes(int threads, const void* of) {
        return ops::sample_scratch_bytes(static_cast<const CpuRows*>(of)->vocab) *
               static_cast<std::size_t>(threads);
    }
};

void sample_on_cpu(const SampleCall& call, const float* logits, std::int32_t* ids,
                   float* probability, float* confidence) {
    const CpuRows of{call.vocab};
    const auto* const seeds = reinterpret_cast<const std::int64_t*>(call.seeds);
    const auto* const positions = reinterpret_cast<const std::int64_t*>(call.positions);
    on_cpu(&CpuRows::bytes, &of, [&](const Context& ctx) {
        const std::size_t each = ops::sample_scratch_bytes(call.vocab);
        ctx.pool->parallel_for(call.rows, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
            Context own;
            own.scratch = ctx.scratch.subspan(static_cast<std::size_t>(thread) * each, each);
            for (std::int64_t row = begin; row < end; ++row) {
                const Tensor one(const_cast<float*>(logits) + row * call.vocab, DType::f32,
                                 {call.vocab});
                ops::SampleParams params{.temperature = call.temperature,
                                         .top_k = call.top_k,
                                         .top_p = call.top_p,
                                         .min_p = call.min_p};
                params.seed = seeds ? static_cast<std::uint64_t>(seeds[row])
                                    : call.seed + static_cast<std::uint64_t>(row);
                const std::int64_t position = positions ? positions[row] : call.position;
                const ops::Sampled drawn =
                    ops::sample(own, one, params, {}, static_cast<std::uint64_t>(position));
                ids[row] = drawn.id;
                probability[row] = drawn.probability;
                confidence[row] = drawn.confidence;
            }
        });
    });
}

#ifdef MR_CUDA
void sample_on_cuda(const Context& ctx, const SampleCall& call, Tensor logits,
                    const cuda::SampleState& state) {
    cuda::SampleRowsPass pass;
    pass.all = {};
    pass.all.temperature = call.temperature;
    pass.all.top_p = call.top_p;
    pass.all.min_p = call.min_p;
    pass.all.repeat_penalty = 1;
    pass.all.top_k = call.top_k;
    pass.all.active = 1;
    pass.all.seed = call.seed;
    pass.all.position = call.position;
    pass.seeds = reinterpret_cast<const std::int64_t*>(call.seeds);
    pass.positions = reinterpret_cast<const std::int64_t*>(call.positions);
    pass.rows = state.rows;
    pass.count = static_cast<int>(call.rows);
    cuda::set_sample_rows(ctx, pass);
    Context next = ctx;
    next.dependent_launch = true;  // the kernel before it is ours
    cuda::sample(next, logits, state,
                 call.temperature == 0 ? cuda::SampleKind::greedy : cuda::SampleKind::any);
}
#endif

}  // namespace

void sample_rows(const SampleCall& call, Address logits, Address ids, Address probability,
                 Address confidence, [[maybe_unused]] Address state, Address stream) {
    ops::check_sample_params({call.temperature, call.top_k, call.top_p, call.min_p});
    if (call.rows == 0) return;
    auto* const id = reinterpret_cast<std::int32_t*>(ids);
    auto* const p = reinterpret_cast<float*>(probability);
    auto* const c = reinterpret_cast<float*>(confidence);
    if (!call.cuda) {
        sample_on_cpu(call, reinterpret_cast<const float*>(logits), id, p, c);
        return;
    }
    on_cuda(stream, {}, [&]([[maybe_unused]] const Context& ctx) {
#ifdef MR_CUDA
        cuda::SampleState s;
        s.rows = reinterpret_cast<cuda::SampleRow*>(state);
        s.next_ids = id;
        s.probability = p;
        s.confidence = c;
        sample_on_cuda(ctx, call,
                       {reinterpret_cast<void*>(logits), DType::f32, Shape{call.rows, call.vocab}},
                       s);
#endif
    });
}

std::size_t sample_state_bytes(std::int64_t rows) {
    return static_cast<std::size_t>(rows) * sizeof(cuda::SampleRow);
}

}  // namespace mr::python
