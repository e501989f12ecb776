// The weights of a model in training in the engine's layout: what is copied, and where to. In host
// memory: needs no GPU.
#include "model/train/live_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/cuda/device.h"
#include "families.h"
#include "model/train/params.h"
#include "support.h"

namespace mr::model {
namespace {

class LiveWeightsOf : public ::testing::TestWithParam<const char*> {
  protected:
    LiveWeightsOf()
        : layout_(param_layout(trainable_spec(load_model(test::reference(GetParam())).spec))) {
        const auto count = static_cast<std::size_t>(layout_.count);
        matrices_.resize(count);
        rest_.resize(count);
        for (std::size_t i = 0; i < count; ++i) {
            matrices_[i] = static_cast<std::uint16_t>((i * 2654435761u) >> 7);
            rest_[i] = static_cast<float>(i);
        }
        trained_ = param_views(layout_, matrices_.data(), DType::bf16, rest_.data(), 0);
    }
    const ModelSpec& spec() const { return layout_.spec; }

    ParamLayout layout_;
    std::vector<std::uint16_t> matrices_;
    std::vector<float> rest_;
    Weights trained_;
};

TEST_P(LiveWeightsOf, AreTheTrainersInTheEnginesOrder) {
    constexpr std::size_t kBehind = 64;
    constexpr std::byte kPoison{0xa5};
    const std::uint64_t bytes = live_bytes(spec(), trained_);
    EXPECT_EQ(bytes % cuda::DeviceArena::padded(1), 0u);
    EXPECT_EQ(bytes > 0, spec().rope.rotary > 0);
    std::vector<std::byte> memory(bytes + kBehind, kPoison);
    const LiveViews live =
        live_views(spec(), trained_, reinterpret_cast<std::uintptr_t>(memory.data()));
    EXPECT_EQ(live.bytes, bytes);
    for (const RowCopy& copy : live.copies) {
        ASSERT_GE(copy.to_step, copy.bytes);
        ASSERT_GE(copy.from_step, copy.bytes);
        for (std::size_t i = 0; i < copy.count; ++i) {
            std::memcpy(copy.to + i * copy.to_step, copy.from + i * copy.from_step, copy.bytes);
        }
    }
    for (std::size_t i = 0; i < kBehind; ++i) ASSERT_EQ(memory[bytes + i], kPoison);

    for (const RoleAt at : roles_of(spec())) {
        const Tensor& from = role_slot(trained_, at);
        const Tensor& to = role_slot(live.weights, at);
        ASSERT_EQ(to.shape, from.shape);
        ASSERT_EQ(to.dtype, is_matrix(at.role) ? DType::bf16 : DType::f32);
        const bool head =
            at.role == Role::v || at.role == Role::v_bias || !row_order(spec(), at.role).plain();
        EXPECT_EQ(to.data != from.data, bytes > 0 && head) << static_cast<int>(at.role);
        const RowOrder order = row_order(spec(), at.role);
        const std::size_t row = from.bytes() / static_cast<std::size_t>(from.dim(0));
        for (std::int64_t r = 0; r < from.dim(0); ++r) {
            ASSERT_EQ(std::memcmp(static_cast<const std::byte*>(to.data) +
                                      static_cast<std::size_t>(r) * row,
                                  static_cast<const std::byte*>(from.data) +
                                      static_cast<std::size_t>(order.source(r)) * row,
                                  row),
                      0)
                << "role " << static_cast<int>(at.role) << " of layer " << at.layer << ", row "
                << r;
        }
    }
    EXPECT_EQ(live.weights.head.data, trained_.head.data);

    // Tensors that kernels take as one are contiguous.
    ASSERT_EQ(live.layers.size(), static_cast<std::size_t>(spec().layers));
    for (std::size_t i = 0; i < live.layers.size(); ++i) {
        const LayerWeights& w = live.weights.layers[i];
        const DeviceLayer& joined = live.layers[i];
        const auto behind = [](const Tensor& t) {
            return static_cast<const std::byte*>(t.data) + t.bytes();
        };
        EXPECT_EQ(joined.qkv.data, w.q.data);
        EXPECT_EQ(w.k.data, behind(w.q));
        EXPECT_EQ(w.v.data, behind(w.k));
        EXPECT_EQ(behind(joined.qkv), behind(w.v));
        EXPECT_EQ(static_cast<bool>(joined.qkv_bias), spec().qkv_bias);
        if (spec().qkv_bias) {
            EXPECT_EQ(joined.qkv_bias.data, w.q_bias.data);
            EXPECT_EQ(w.k_bias.data, behind(w.q_bias));
            EXPECT_EQ(behind(joined.qkv_bias), behind(w.v_bias));
        }
        EXPECT_EQ(static_cast<bool>(joined.gate_up), spec().gated);
        if (spec().gated) {
            EXPECT_EQ(joined.gate_up.data, w.gate.data);
            EXPECT_EQ(behind(joined.gate_up), behind(w.up));
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Families, LiveWeightsOf, ::testing::ValuesIn(test::kFamilies),
                         test::family_name);

}  // namespace
}  // namespace mr::model
