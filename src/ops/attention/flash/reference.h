// Attention in f64, forward and backward, directly from the definition: the reference for every
// faster version. It is written for clarity, and forms the whole matrix of weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "ops/attention/mask_testing.h"

namespace mr::ops::reference {

// A packed batch, as defined in flash.h.
struct Problem {
    int heads = 1, kv_heads = 1, head_dim = 1;
    std::vector<std::int32_t> cu_q, cu_k;  // cumulative lengths, from 0
    AttentionMask mask;
    double scale = 1;
    std::vector<double> q, dout;  // [tokens_q, heads, head_dim]
    std::vector<double> k, v;     // [tokens_k, kv_heads, head_dim]

    int sequences() const { return static_cast<int>(cu_q.size()) - 1; }
    int queries(int seq) const { return cu_q[at(seq) + 1] - cu_q[at(seq)]; }
    int keys(int seq) const { return cu_k[at(seq) + 1] - cu_k[at(seq)]; }
    int tokens_q() const { return cu_q.back(); }
    int tokens_k() const { return cu_k.back(); }

    // Where the row of query i (key j) of a sequence begins in q, dout, out, dq (k, v, dk, dv), and
    // where its entry is in lse [heads, tokens_q]; `head` is always the query's.
    std::size_t q_at(int seq, int i, int head) const {
        return (at(cu_q[at(seq)] + i) * at(heads) + at(head)) * at(head_dim);
    }
    std::size_t k_at(int seq, int j, int head) const {
        const int kv_head = head / (heads / kv_heads);
        return (at(cu_k[at(seq)] + j) * at(kv_heads) + at(kv_head)) * at(head_dim);
    }
    std::size_t lse_at(int seq, int i, int head) const {
        return at(head) * at(tokens_q()) + at(cu_q[at(seq)] + i);
    }
    static std::size_t at(int i) { return static_cast<std::size_t>(i); }
};

// Normal values with the given deviation for q and k (1 for v and dout), as f32, or rounded by
// `round` if the version under test stores less. The scale is 1 / sqrt(head_dim).
inline Problem random_problem(
    int heads, int kv_heads, int head_dim, const std::vector<int>& q_lengths,
    const std::vector<int>& k_lengths, const AttentionMask& mask, unsigned seed,
    float deviation = 1, const std::function<float(float)>& round = [](float x) { return x; }) {
    Problem p{heads, kv_heads, head_dim, {0}, {0}, mask, 1 / std::sqrt(double(head_dim)),
              {},    {},       {},       {}};
    p.scale = static_cast<float>(p.scale);
    for (int n : q_lengths) p.cu_q.push_back(p.cu_q.back() + n);
    for (int n : k_lengths) p.cu_k.push_back(p.cu_k.back() + n);
    std::mt19937 random(seed);
    const auto fill = [&](std::vector<double>& x, int tokens, int rows, float size) {
        std::normal_distribution<float> normal(0, size);
        x.resize(Problem::at(tokens) * Problem::at(rows) * Problem::at(head_dim));
        for (double& value : x) value = round(normal(random));
    };
    fill(p.q, p.tokens_q(), heads, deviation);
    fill(p.k, p.tokens_k(), kv_heads, deviation);
    fill(p.v, p.tokens_k(), kv_heads, 1);
    fill(p.dout, p.tokens_q(), heads, 1);
    return p;
}

inline double dot(const double* a, const double* b, int n) {
    double sum = 0;
    for (int d = 0; d < n; ++d) sum += a[d] * b[d];
    return sum;
}

// One row of one head: everything between q, k, v and the gradients.
struct RowWeights {
    std::vector<int> keys;  // that the row sees; for each of them:
    std::vector<double> s;  // score
    std::vector<double> p;  // weight
    double lse = -std::numeric_limits<double>::infinity();
};

inline RowWeights row_weights(const Problem& p, int seq, int i, int head) {
    RowWeights row;
    const int position = p.keys(seq) - p.queries(seq) + i;
    double top = -std::numeric_limits<double>::infinity();
    for (int j = 0; j < p.keys(seq); ++j) {
        if (!sees(p.mask, position, j)) continue;
        row.keys.push_back(j);
        row.s.push_back(p.scale *
                        dot(&p.q[p.q_at(seq, i, head)], &p.k[p.k_at(seq, j, head)], p.head_dim));
        top = std::max(top, row.s.back());
    }
    row.p.assign(row.s.size(), 0);
    if (std::isinf(top)) return row;  // no key, or every score -infinity: no weight anywhere
    double sum = 0;
    for (double s : row.s) sum += std::exp(s - top);
    for (std::size_t x = 0; x < row.s.size(); ++x) row.p[x] = std::exp(row.s[x] - top) / sum;
    row.lse = top + std::log(sum);
    return row;
}

struct Result {
    std::vector<double> out, lse, dq, dk, dv;
};

inline Result forward(const Problem& p) {
    Result r;
    r.out.assign(p.q.size(), 0);
    r.lse.assign(Problem::at(p.heads) * Problem::at(p.tokens_q()), 0);
    for (int seq = 0; seq < p.sequences(); ++seq) {
        for (int head = 0; head < p.heads; ++head) {
            for (int i = 0; i < p.queries(seq); ++i) {
                const RowWeights row = row_weights(p, seq, i, head);
                r.lse[p.lse_at(seq, i, head)] = row.lse;
                double* out = &r.out[p.q_at(seq, i, head)];
                for (std::size_t x = 0; x < row.keys.size(); ++x) {
                    const double* v = &p.v[p.k_at(seq, row.keys[x], head)];
                    for (int d = 0; d < p.head_dim; ++d) out[d] += row.p[x] * v[d];
                }
            }
        }
    }
    return r;
}

// The chain rule, step by step: out = P v, P = softmax(s), s = scale q kᵀ.
inline Result forward_backward(const Problem& p) {
    Result r = forward(p);
    r.dq.assign(p.q.size(), 0);
    r.dk.assign(p.k.size(), 0);
    r.dv.assign(p.v.size(), 0);
    for (int seq = 0; seq < p.sequences(); ++seq) {
        for (int head = 0; head < p.heads; ++head) {
            for (int i = 0; i < p.queries(seq); ++i) {
                const RowWeights row = row_weights(p, seq, i, head);
                const double* q = &p.q[p.q_at(seq, i, head)];
                const double* dout = &p.dout[p.q_at(seq, i, head)];
                double* dq = &r.dq[p.q_at(seq, i, head)];
                std::vector<double> dp(row.keys.size());
                double mean = 0;  // mean of dp under the weights
                for (std::size_t x = 0; x < row.keys.size(); ++x) {
                    dp[x] = dot(dout, &p.v[p.k_at(seq, row.keys[x], head)], p.head_dim);
                    mean += row.p[x] * dp[x];
                }
                for (std::size_t x = 0; x < row.keys.size(); ++x) {
                    // d softmax: dP[y] / ds[x] = P[y] ((x == y) - P[x])
                    const double ds = row.p[x] * (dp[x] - mean);
                    const std::size_t at = p.k_at(seq, row.keys[x], head);
                    for (int d = 0; d < p.head_dim; ++d) {
                        r.dv[at + Problem::at(d)] += row.p[x] * dout[d];
                        dq[d] += p.scale * ds * p.k[at + Problem::at(d)];
                        r.dk[at + Problem::at(d)] += p.scale * ds * q[d];
                    }
                }
            }
        }
    }
    return r;
}

}  // namespace mr::ops::reference
