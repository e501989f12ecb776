// Shared by the tests of the ops.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/cpu.h"
#include "core/tensor.h"

namespace mr::ops::testing {

constexpr double kRoundoff = 0x1p-24;  // half the distance between f32 neighbours at 1
constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

// Runs body once for every instruction path of this machine.
template <typename Body>
void for_each_isa(Body&& body) {
    const Isa before = active_isa();
    for (Isa isa : available_isas()) {
        SCOPED_TRACE(isa_name(isa));
        set_isa(isa);
        body();
    }
    set_isa(before);
}

// Owns an f32 tensor.
struct Floats {
    explicit Floats(Shape shape, float value = kPoison)
        : values(static_cast<std::size_t>(shape.count()), value), shape_(shape) {}

    static Floats normal(Shape shape, unsigned seed, float deviation = 1, float mean = 0) {
        Floats out(shape);
        std::mt19937 random(seed);
        std::normal_distribution<float> distribution(mean, deviation);
        for (float& value : out.values) value = distribution(random);
        return out;
    }

    Tensor tensor() { return {values.data(), DType::f32, shape_}; }
    operator Tensor() { return tensor(); }
    float operator[](std::int64_t i) const { return values[static_cast<std::size_t>(i)]; }
    float& operator[](std::int64_t i) { return values[static_cast<std::size_t>(i)]; }
    std::int64_t size() const { return static_cast<std::int64_t>(values.size()); }

    std::vector<float> values;

  private:
    Shape shape_;
};

// Bit for bit, NaNs included.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A pool, a ledger and scratch.
struct Bench {
    explicit Bench(int threads = 1, std::size_t scratch_bytes = 0)
        : pool(threads), scratch(scratch_bytes) {}
    operator Context() { return {&pool, &ledger, scratch}; }

    ThreadPool pool;
    Ledger ledger;
    std::vector<std::byte> scratch;
};

// Compares a record with the expected counts of one call, except `seconds`.
inline void expect_record(const OpRecord& record, std::uint64_t calls, std::uint64_t read,
                          std::uint64_t written, std::uint64_t flops) {
    EXPECT_EQ(record.calls, calls);
    EXPECT_EQ(record.bytes_read, read);
    EXPECT_EQ(record.bytes_written, written);
    EXPECT_EQ(record.flops, flops);
    EXPECT_GE(record.seconds, 0);
}

}  // namespace mr::ops::testing
