// The operations as Python calls them: addresses and numbers, without conversion.
#include "ops.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <string>
#include <utility>

#include "core/cuda/device.h"
#include "core/error.h"
#include "ops_module.h"
#include "plans.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mr::python {
namespace {

using Unlocked = nb::call_guard<nb::gil_scoped_release>;

DType type_of(const std::string& name) {
    const auto type = dtype_from_name(name);
    MR_CHECK(type && is_float(*type), "the type is f32, f16 or bf16");
    return *type;
}

std::unique_ptr<AttentionPlan> attention_plan(
    const std::string& dtype, bool cuda, bool packed, std::int64_t sequences, std::int64_t queries,
    std::int64_t keys, std::int64_t max_queries, std::int64_t max_keys, std::int64_t heads,
    std::int64_t kv_heads, std::int64_t head_dim, std::int64_t q_stride, std::int64_t k_stride,
    std::int64_t v_stride, const std::string& mask, std::int32_t block, std::int32_t window,
    std::int32_t sinks, std::int32_t origin, float scale) {
    using Kind = ops::AttentionMask::Kind;
    const Kind kind = mask == "full"           ? Kind::full
                      : mask == "causal"       ? Kind::causal
                      : mask == "block_causal" ? Kind::block_causal
                                               : Kind::block_before;
    return std::make_unique<AttentionPlan>(
        AttentionShape{.dtype = type_of(dtype),
                       .cuda = cuda,
                       .packed = packed,
                       .sequences = sequences,
                       .queries = queries,
                       .keys = keys,
                       .max_queries = max_queries,
                       .max_keys = max_keys,
                       .heads = heads,
                       .kv_heads = kv_heads,
                       .head_dim = head_dim,
                       .q_stride = q_stride,
                       .k_stride = k_stride,
                       .v_stride = v_stride,
                       .mask = {kind, block, window, sinks, origin},
                       .scale = scale});
}

void add_attention(nb::module_& m) {
    nb::class_<AttentionPlan>(m, "AttentionPlan")
        .def(
            "forward",
            [](const AttentionPlan& plan, Address q, Address k, Address v, Address out, Address lse,
               Address cu_q, Address cu_k, Address stream) {
                plan.forward(q, k, v, out, lse, {cu_q, cu_k}, stream);
            },
            Unlocked())
        .def("backward_scratch_bytes", &AttentionPlan::backward_scratch_bytes)
        .def(
            "backward",
            [](const AttentionPlan& plan, Address dout, Address dq, Address dk, Address dv,
               Address q, Address k, Address v, Address out, Address lse, Address cu_q,
               Address cu_k, Address scratch, Address stream) {
                plan.backward({dout, dq, dk, dv}, q, k, v, out, lse, {cu_q, cu_k}, scratch, stream);
            },
            Unlocked());
    m.def("attention_plan", &attention_plan, "dtype"_a, "cuda"_a, "packed"_a, "sequences"_a,
          "queries"_a, "keys"_a, "max_queries"_a, "max_keys"_a, "heads"_a, "kv_heads"_a,
          "head_dim"_a, "q_stride"_a, "k_stride"_a, "v_stride"_a, "mask"_a, "block"_a, "window"_a,
          "sinks"_a, "origin"_a, "scale"_a);
}

void add_plans(nb::module_& m) {
    nb::class_<Plans>(m, "Plans")
        .def("find", &Plans::find)
        .def("keep", &Plans::keep)
        .def("size", &Plans::size);
    nb::class_<QuickAttention>(m, "QuickAttention")
        .def(nb::init<const nb::capsule&, nb::object, nb::object, nb::tuple, nb::tuple>())
        .def("forward", &QuickAttention::forward);
    m.def("new_plans", [](nb::capsule api, nb::tuple types) {
        return std::make_unique<Plans>(std::move(api), std::move(types));
    });
}

NormCall norm_call(bool cuda, bool layer, std::int64_t rows, std::int64_t cols, float eps) {
    NormCall call;
    call.cuda = cuda;
    call.kind = layer ? ops::NormKind::layer : ops::NormKind::rms;
    call.rows = rows;
    call.cols = cols;
    call.eps = eps;
    return call;
}

void add_norm(nb::module_& m) {
    m.def(
        "norm_residual",
        [](bool cuda, bool layer, std::int64_t rows, std::int64_t cols, float eps,
           const std::string& x_type, const std::string& residual_type,
           const std::string& weight_type, Address x, Address residual, Address weight,
           Address bias, Address out, Address sum, Address stream) {
            NormCall call = norm_call(cuda, layer, rows, cols, eps);
            call.x_type = type_of(x_type);
            call.residual_type = type_of(residual_type);
            call.weight_type = type_of(weight_type);
            norm_residual(call, x, residual, weight, bias, out, sum, stream);
        },
        Unlocked());
    m.def(
        "norm_residual_backward",
        [](bool cuda, bool layer, std::int64_t rows, std::int64_t cols, float eps,
           const std::string& dy_type, const std::string& s_type, Address dy, Address ds, Address s,
           Address weight, Address dx, Address dweight, Address dbias, Address scratch,
           Address stream) {
            NormCall call = norm_call(cuda, layer, rows, cols, eps);
            call.x_type = type_of(s_type);
            norm_residual_backward(call, type_of(dy_type), dy, ds, s, weight, dx, dweight, dbias,
                                   scratch, stream);
        },
        Unlocked());
    m.def("norm_backward_scratch", &norm_backward_scratch);
    m.def("norm_takes_weights", [](const std::string& type, std::int64_t rows, std::int64_t cols) {
        return norm_takes_weights(type_of(type), rows, cols);
    });
}

void add_sample(nb::module_& m) {
    m.def(
        "sample",
        [](bool cuda, std::int64_t rows, std::int64_t vocab, float temperature, std::int32_t top_k,
           float top_p, float min_p, std::uint64_t seed, std::int64_t position, Address seeds,
           Address positions, Address logits, Address ids, Address probability, Address confidence,
           Address state, Address stream) {
            sample_rows({.cuda = cuda,
                         .rows = rows,
                         .vocab = vocab,
                         .temperature = temperature,
                         .top_p = top_p,
                         .min_p = min_p,
                         .top_k = top_k,
                         .seed = seed,
                         .position = position,
                         .seeds = seeds,
                         .positions = positions},
                        logits, ids, probability, confidence, state, stream);
        },
        Unlocked());
    m.def("sample_state_bytes", &sample_state_bytes);
}

}  // namespace

void add_ops(nb::module_& m) {
    add_attention(m);
    add_plans(m);
    add_norm(m);
    add_sample(m);
    m.def("set_ops_threads", &set_ops_threads, "threads"_a);
    m.def("cuda_built", &cuda::built);
    m.def("gpu_passed_over", &cuda::passed_over);
}

}  // namespace mr::python
