// Plain C++: the reference for the other paths.

namespace {

struct QuantBlock {
    float d;
    std::int8_t q[32];
};

void unpack_row(const LinearJob& job, const unsigned char* w, float* scale, std::int8_t* q) {
    const bool q8 = job.kind == WeightKind::q8_0;
    for (std::int64_t b = 0; b < job.k / 32; ++b, w += q8 ? 34 : 18, q += 32) {
        scale[b] = f16_value(load_u16(w));
        if (q8) {
            for (int i = 0; i < 32; ++i) q[i] = static_cast<std::int8_t>(w[2 + i]);
        } else {
            for (int i = 0; i < 16; ++i) {
                q[i] = static_cast<std::int8_t>((w[2 + i] & 15) - 8);
                q[16 + i] = static_cast<std::int8_t>((w[2 + i] >> 4) - 8);
            }
        }
    }
}

void quantised_row(const LinearJob& job, std::int64_t row, void* pack) {
    const std::int64_t blocks = job.k / 32;
    auto* scale = static_cast<float*>(pack);
    auto* w = reinterpret_cast<std::int8_t*>(scale + blocks);
    unpack_row(job, job.w + static_cast<std::size_t>(row) * job.row_bytes, scale, w);
    for (std::int64_t t = 0; t < job.tokens; ++t) {
        const auto* x = static_cast<const QuantBlock*>(job.xq) + t * blocks;
        float acc = 0;
        for (std::int64_t b = 0; b < blocks; ++b) {
            std::int32_t sum = 0;
            for (int i = 0; i < 32; ++i) sum += w[b * 32 + i] * x[b].q[i];
            acc = __builtin_fmaf(static_cast<float>(sum) * x[b].d, scale[b], acc);
        }
        store(job, t, row, acc);
    }
}

void float_row(const LinearJob& job, std::int64_t row, void* pack) {
    constexpr int kLanes = 4;
    auto* w = static_cast<float*>(pack);
    const unsigned char* from = job.w + static_cast<std::size_t>(row) * job.row_bytes;
    for (std::int64_t i = 0; i < job.k; ++i) w[i] = float_weight(job.kind, from, i);
    for (std::int64_t t = 0; t < job.tokens; ++t) {
        const float* x = job.x + t * job.k;
        float acc[kLanes] = {};
        std::int64_t i = 0;
        for (; i + kLanes <= job.k; i += kLanes) {
            for (int j = 0; j < kLanes; ++j) acc[j] += w[i + j] * x[i + j];
        }
        for (int j = 0; i < job.k; ++i, ++j) acc[j] += w[i] * x[i];
        store(job, t, row, (acc[0] + acc[1]) + (acc[2] + acc[3]));
    }
}

}  // namespace

void linear_quantise(void* xq, const float* x, std::int64_t k, std::int64_t /*tokens*/,
                     std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t b = 0; b < k / 32; ++b) {
            const float* from = x + t * k + b * 32;
            QuantBlock& to = static_cast<QuantBlock*>(xq)[t * (k / 32) + b];
            std::uint32_t top = 0;
            for (int i = 0; i < 32; ++i) {
                const std::uint32_t bits = float_bits(from[i]) & 0x7fffffffu;
                top = bits > top ? bits : top;
            }
            const QuantScale scale = quant_scale(top);
            to.d = scale.d;
            for (int i = 0; i < 32; ++i) to.q[i] = quantised(from[i], scale);
        }
    }
}

void linear_rows(const LinearJob& job, std::int64_t begin, std::int64_t end, void* pack) {
    const bool quantised = job.kind == WeightKind::q8_0 || job.kind == WeightKind::q4_0;
    for (std::int64_t row = begin; row < end; ++row) {
        if (quantised) {
            quantised_row(job, row, pack);
        } else {
            float_row(job, row, pack);
        }
    }
}
