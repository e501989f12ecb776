#include "model/train/live_weights.h"

#include <utility>

#include "core/cuda/device.h"
#include "core/error.h"
#include "model/train/params.h"

namespace mr::model {
namespace {

class LivePlacer {
  public:
    LivePlacer(const ModelSpec& spec, const Weights& trained, std::uintptr_t base)
        : spec_(spec), base_(base) {
        out_.weights = trained;
        out_.layers.resize(trained.layers.size());
        const bool reordered = !row_order(spec, Role::q).plain();
        for (std::size_t i = 0; i < out_.layers.size(); ++i) {
            LayerWeights& w = out_.weights.layers[i];
            if (reordered) copy_heads(w);
            out_.layers[i].qkv = qkv_matrix(spec, w);
            out_.layers[i].qkv_bias = qkv_bias(spec, w);
            if (spec.gated) out_.layers[i].gate_up = gate_up_matrix(spec, w);
        }
    }
    LiveViews result() { return std::move(out_); }

  private:
    // Replaces the tensors by their copies.
    void copy_heads(LayerWeights& w) {
        join(w.q, w.k, w.v);
        if (w.q_bias) join(w.q_bias, w.k_bias, w.v_bias);
        for (Tensor* norm : {&w.q_norm, &w.k_norm}) {
            if (!*norm) continue;
            reorder(*norm, take(norm->bytes()));
        }
    }
    void join(Tensor& q, Tensor& k, Tensor& v) {
        std::byte* to = take(q.bytes() + k.bytes() + v.bytes());
        to = reorder(q, to);
        to = reorder(k, to);
        add({.to = to, .from = static_cast<const std::byte*>(v.data), .bytes = v.bytes()});
        v.data = to;
    }
    // Row r of a head is row order.source(r) of the original: the first half of the rotated rows
    // goes to even rows, the second to odd ones, and the others stay. Returns the address after the
    // copy.
    std::byte* reorder(Tensor& tensor, std::byte* to) {
        const RowOrder order = row_order(spec_, Role::q);
        const std::int64_t rows = tensor.dim(0), half = order.rotary / 2;
        const std::size_t row = tensor.bytes() / static_cast<std::size_t>(rows);
        const auto at = [row](std::int64_t r) { return static_cast<std::size_t>(r) * row; };
        const auto* from = static_cast<const std::byte*>(tensor.data);
        for (std::int64_t head = 0; head < rows; head += order.head_dim) {
            for (const std::int64_t odd : {0, 1}) {
                add({.to = to + at(head + odd),
                     .from = from + at(order.source(head + odd)),
                     .bytes = row,
                     .count = static_cast<std::size_t>(half),
                     .to_step = 2 * row,
                     .from_step = row});
            }
            if (order.rotary == order.head_dim) continue;
            add({.to = to + at(head + order.rotary),
                 .from = from + at(head + order.rotary),
                 .bytes = at(order.head_dim - order.rotary)});
        }
        tensor.data = to;
        return to + tensor.bytes();
    }
    void add(RowCopy copy) {
        if (copy.count == 1) copy.to_step = copy.from_step = copy.bytes;
        out_.copies.push_back(copy);
    }
    std::byte* take(std::size_t bytes) {
        auto* at = reinterpret_cast<std::byte*>(base_ + out_.bytes);
        out_.bytes += cuda::DeviceArena::padded(bytes);
        return at;
    }

    const ModelSpec& spec_;
    const std::uintptr_t base_;
    LiveViews out_;
};

}  // namespace

LiveViews live_views(const ModelSpec& spec, const Weights& trained, std::uintptr_t base) {
    return LivePlacer(spec, trained, base).result();
}

std::uint64_t live_bytes(const ModelSpec& spec, const Weights& trained) {
    constexpr std::uintptr_t kAnywhere = 1 << 20;
    return live_views(spec, trained, kAnywhere).bytes;
}

#ifdef MR_CUDA
LiveWeights live_weights(const ModelSpec& spec, const Weights& trained) {
    auto made = std::make_shared<DeviceWeights>();
    std::uintptr_t base = 0;
    if (const std::uint64_t bytes = live_bytes(spec, trained); bytes > 0) {
        made->memory = cuda::DeviceArena("samples", bytes);
        base = reinterpret_cast<std::uintptr_t>(made->memory.alloc(bytes));
    }
    LiveViews views = live_views(spec, trained, base);
    made->weights = std::move(views.weights);
    made->layers = std::move(views.layers);
    made->bytes =
        device_weight_bytes(spec, [&](RoleAt at) { return role_slot(made->weights, at).dtype; });
    return {std::move(made), std::move(views.copies)};
}

void refresh(const LiveWeights& live) {
    const cuda::Stream stream;
    for (const RowCopy& c : live.copies) {
        stream.rows_on_device(c.to, c.to_step, c.from, c.from_step, c.bytes, c.count);
    }
    stream.synchronize();
}
#else
LiveWeights live_weights(const ModelSpec&, const Weights&) {
    cuda::require_device();  // throws: there is no GPU
    return {};
}
void refresh(const LiveWeights&) {}
#endif

}  // namespace mr::model
