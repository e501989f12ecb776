#include "ops/add/add.h"

#include "ops/simd/testing.h"

namespace mr::ops {
namespace {

using namespace testing;

TEST(Add, IsTheCorrectlyRoundedSum) {
    for_each_isa([] {
        for (std::int64_t n : {1, 3, 4, 7, 16, 33, 1000, 40001}) {
            Floats a = Floats::normal({1, n}, 1), b = Floats::normal({1, n}, 2), out({1, n});
            Bench bench(2);
            add(bench, out, a, b);
            for (std::int64_t i = 0; i < n; ++i) {
                ASSERT_EQ(out[i], static_cast<float>(double{a[i]} + double{b[i]})) << i;
            }
            Floats in_a = a, in_b = b;
            add(bench, in_a, in_a, b);
            add(bench, in_b, a, in_b);
            EXPECT_TRUE(same_bits(in_a.values, out.values));
            EXPECT_TRUE(same_bits(in_b.values, out.values));
        }
    });
}

TEST(Add, LedgerAndContract) {
    Floats a({3, 5}, 1), b({3, 5}, 2), other({5, 3}, 0);
    Bench bench;
    add(bench, a, a, b);
    expect_record(bench.ledger.op(OpKind::add), 1, 2 * 60, 60, 15);
    EXPECT_THROW(add(bench, a, a, other), ContractError);
    EXPECT_THROW(add(bench, a, a, Tensor(b.values.data(), DType::f16, {3, 5})), ContractError);
}

}  // namespace
}  // namespace mr::ops
