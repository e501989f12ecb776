// Error bounds for versions of attention that compute with roundings, relative to the f64
// reference: the errors of each step, to first order, propagated from the scores to every result.
#pragma once

#include "ops/attention/flash/reference.h"

namespace mr::ops::reference {

// Half the distance between neighbours of 1, relative to which a value is rounded.
struct Roundoff {
    double sums = 0x1p-24;      // products, sums, exponentials
    double operands = 0x1p-24;  // weights and dS before they are multiplied again
    double outputs = 0x1p-24;   // out, dq, dk, dv as they are stored
};

// An absolute bound for every element of a Result. `r` is the reference's, of the forward alone or
// of both.
inline Result error_bounds(const Problem& p, const Result& r, const Roundoff& u) {
    constexpr double kTiny = 0x1p-126;  // largest loss by flushing to zero
    Result e;
    e.out.assign(r.out.size(), 0);
    e.lse.assign(r.lse.size(), 0);
    e.dq.assign(r.dq.size(), 0);
    e.dk.assign(r.dk.size(), 0);
    e.dv.assign(r.dv.size(), 0);
    const int dim = p.head_dim;
    const double dot_error = (dim + 3) * u.sums;  // of a dot product, relative to its magnitude
    const auto magnitude = [&](const double* a, const double* b) {
        double sum = 0;
        for (int d = 0; d < dim; ++d) sum += std::abs(a[d] * b[d]);
        return sum;
    };
    for (int seq = 0; seq < p.sequences(); ++seq) {
        const double rows = p.queries(seq) * (p.heads / p.kv_heads);  // rows that add to dk and dv
        for (int head = 0; head < p.heads; ++head) {
            for (int i = 0; i < p.queries(seq); ++i) {
                const RowWeights row = row_weights(p, seq, i, head);
                const std::size_t n = row.keys.size(), q_at = p.q_at(seq, i, head);
                const double *q = &p.q[q_at], *dout = &p.dout[q_at];
                if (std::isinf(row.lse)) continue;  // exact
                std::vector<double> s_error(n), far(n);
                double top = -std::numeric_limits<double>::infinity(), worst = 0, spread = 0;
                for (double s : row.s) top = std::max(top, s);
                for (std::size_t x = 0; x < n; ++x) {
                    const double* k = &p.k[p.k_at(seq, row.keys[x], head)];
                    s_error[x] = dot_error * p.scale * magnitude(q, k);
                    worst = std::max(worst, s_error[x]);
                    far[x] = u.sums * (top - row.s[x]);  // rounding of the exponent
                    spread += row.p[x] * far[x];
                }
                // Sums over n keys, and the exponentials and rescalings involved.
                const double sum_error = (static_cast<double>(n) + 16) * u.sums + spread;
                const double lse_error = worst + sum_error + 2 * u.sums * (std::abs(row.lse) + 1);
                e.lse[p.lse_at(seq, i, head)] = lse_error;
                double delta = 0, delta_error = 0;
                std::vector<double> dp(n);
                for (std::size_t x = 0; x < n; ++x) {
                    const double* v = &p.v[p.k_at(seq, row.keys[x], head)];
                    const double relative =
                        std::expm1(s_error[x] + worst + far[x] + sum_error) + u.operands;
                    for (int d = 0; d < dim; ++d) {
                        e.out[q_at + Problem::at(d)] +=
                            (relative * row.p[x] + kTiny) * std::abs(v[d]);
                    }
                    dp[x] = dot(dout, v, dim);
                }
                for (int d = 0; d < dim; ++d) {
                    const double out = r.out[q_at + Problem::at(d)];
                    double& out_error = e.out[q_at + Problem::at(d)];
                    out_error += u.outputs * std::abs(out);
                    delta += dout[d] * out;
                    delta_error += std::abs(dout[d]) * (out_error + dot_error * std::abs(out));
                }
                if (r.dq.empty()) continue;
                for (std::size_t x = 0; x < n; ++x) {
                    const std::size_t k_at = p.k_at(seq, row.keys[x], head);
                    const double weight = row.p[x], ds = weight * (dp[x] - delta);
                    const double exponent =
                        s_error[x] + lse_error + u.sums * (std::abs(row.s[x] - row.lse) + 4);
                    const double p_error = std::expm1(exponent) * weight + kTiny;
                    const double difference_error = dot_error * magnitude(dout, &p.v[k_at]) +
                                                    delta_error +
                                                    u.sums * (std::abs(dp[x]) + std::abs(delta));
                    const double ds_error = p_error * std::abs(dp[x] - delta) +
                                            (weight + p_error) * difference_error +
                                            u.operands * std::abs(ds);
                    const double dq_error =
                        ds_error + (static_cast<double>(n) + 4) * u.sums * std::abs(ds);
                    const double dk_error = ds_error + (rows + 4) * u.sums * std::abs(ds);
                    const double dv_error = p_error + (u.operands + (rows + 4) * u.sums) * weight;
                    for (int d = 0; d < dim; ++d) {
                        e.dq[q_at + Problem::at(d)] +=
                            p.scale * dq_error * std::abs(p.k[k_at + Problem::at(d)]);
                        e.dk[k_at + Problem::at(d)] += p.scale * dk_error * std::abs(q[d]);
                        e.dv[k_at + Problem::at(d)] += dv_error * std::abs(dout[d]);
                    }
                }
            }
        }
    }
    const auto stored = [&](std::vector<double>& error, const std::vector<double>& value) {
        for (std::size_t x = 0; x < error.size(); ++x) error[x] += u.outputs * std::abs(value[x]);
    };
    stored(e.dq, r.dq);
    stored(e.dk, r.dk);
    stored(e.dv, r.dv);
    return e;
}

}  // namespace mr::ops::reference
