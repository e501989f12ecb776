#include "lab/overlap/traffic.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/splitmix.h"

namespace mr::overlap {
namespace {

constexpr std::size_t kCutAlign = 256;  // bytes

std::span<const std::byte> bytes_at(const float* from, std::int64_t count) {
    return std::as_bytes(std::span(from, static_cast<std::size_t>(count)));
}
void add(std::vector<Copy>& copies, float* to, const float* from, std::int64_t count) {
    if (count == 0) return;
    const std::span<const std::byte> bytes = bytes_at(from, count);
    copies.push_back({reinterpret_cast<std::byte*>(to), bytes.data(), bytes.size()});
}

// Elements [begin, end) of a range that belong to others: before the rank's share, and after it.
struct Others {
    std::int64_t begin, end;
};
std::vector<Others> others_of(const comm::Shards& shards, int rank) {
    std::vector<Others> out;
    if (shards.begin(rank) > 0) out.push_back({0, shards.begin(rank)});
    if (shards.end(rank) < shards.count()) out.push_back({shards.end(rank), shards.count()});
    return out;
}

Phase phase_of(std::span<const Copy> out, std::span<const Copy> in, double bytes_per_second) {
    Phase phase;
    phase.out_bytes = bytes_of(out);
    phase.in_bytes = bytes_of(in);
    phase.times = round_times(std::max(phase.out_bytes, phase.in_bytes), bytes_per_second);
    const int rounds = static_cast<int>(phase.times.size());
    phase.out = in_rounds(out, rounds);
    phase.in = in_rounds(in, rounds);
    return phase;
}

// The place of the next range in GhostMemory.
struct Place {
    std::int64_t own = 0, others = 0, parts = 0;
};

Bucket plan_bucket(std::span<const Gradient> gradients, int rank, const GhostMemory& m, Place& at,
                   double bytes_per_second) {
    std::vector<Copy> scatter_out, scatter_in, gather_out, gather_in;
    Bucket bucket;
    const Place first = at;
    for (const Gradient& g : gradients) {
        const std::int64_t own = g.shards.size(rank);
        for (const Others& part : others_of(g.shards, rank)) {
            const std::int64_t count = part.end - part.begin;
            add(scatter_out, m.got_parts + at.others, g.elements + part.begin, count);
            add(gather_in, g.elements + part.begin, m.sums + at.others, count);
            at.others += count;
        }
        if (own > 0) {
            bucket.sums.push_back(
                {g.elements + g.shards.begin(rank), m.arrived + at.parts, m.packed + at.own, own});
        }
        at.own += own;
        at.parts += (g.shards.ranks() - 1) * own;
    }
    add(scatter_in, m.arrived + first.parts, m.parts + first.parts, at.parts - first.parts);
    const std::int64_t own = at.own - first.own;
    for (std::int64_t to = first.parts; to < at.parts; to += own) {  // to every ghost
        add(gather_out, m.got_sums + to, m.packed + first.own, own);
    }
    bucket.scatter = phase_of(scatter_out, scatter_in, bytes_per_second);
    bucket.gather = phase_of(gather_out, gather_in, bytes_per_second);
    return bucket;
}

}  // namespace

std::vector<ReadyRange> backward_order(const model::ParamLayout& layout) {
    const std::vector<model::ParamRange> ranges = model::param_ranges(layout);
    std::vector<ReadyRange> out;
    for (int unit = model::unit_count(layout.spec); unit-- > 0;) {
        for (const model::ParamRange& range : ranges) {
            if (range.unit == unit) out.push_back({range.begin, range.end, unit == 0});
        }
    }
    return out;
}

ReadyBytes ready_bytes(std::span<const ReadyRange> order) {
    ReadyBytes out;
    for (const ReadyRange& range : order) {
        out.all += range.bytes();
        if (!range.last) out.before_last += range.bytes();
    }
    return out;
}

std::vector<std::size_t> bucket_ends(std::span<const std::int64_t> counts,
                                     std::int64_t bucket_bytes) {
    std::vector<std::size_t> ends;
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
        bytes += counts[i] * static_cast<std::int64_t>(sizeof(float));
        if (bytes < bucket_bytes && i + 1 < counts.size()) continue;
        ends.push_back(i + 1);
        bytes = 0;
    }
    return ends;
}

std::uint64_t bytes_of(std::span<const Copy> copies) {
    std::uint64_t sum = 0;
    for (const Copy& copy : copies) sum += copy.bytes;
    return sum;
}

std::vector<std::vector<Copy>> in_rounds(std::span<const Copy> copies, int rounds) {
    MR_CHECK(rounds > 0, "there is a round");
    std::vector<std::vector<Copy>> out(static_cast<std::size_t>(rounds));
    const std::uint64_t all = bytes_of(copies);
    std::uint64_t at = 0;   // byte count so far
    std::size_t round = 0;  // the round of byte `at`
    const auto end_of = [&](std::size_t r) {
        if (r + 1 == out.size()) return all;
        return all * (r + 1) / out.size() / kCutAlign * kCutAlign;
    };
    for (const Copy& copy : copies) {
        for (std::size_t done = 0; done < copy.bytes;) {
            while (end_of(round) <= at) ++round;
            const auto bytes = static_cast<std::size_t>(
                std::min<std::uint64_t>(copy.bytes - done, end_of(round) - at));
            out[round].push_back({copy.to + done, copy.from + done, bytes});
            done += bytes;
            at += bytes;
        }
    }
    return out;
}

std::vector<std::uint64_t> round_times(std::uint64_t bytes, double bytes_per_second) {
    MR_CHECK(bytes_per_second > 0, "a link has a rate");
    const double seconds = static_cast<double>(bytes) / bytes_per_second;
    const auto all = static_cast<std::uint64_t>(std::llround(seconds * 1e9));
    const auto rounds =
        static_cast<std::uint64_t>(std::max(1.0, std::round(seconds / kRoundSeconds)));
    std::vector<std::uint64_t> times;
    for (std::uint64_t r = 0; r < rounds; ++r) {
        times.push_back(all * (r + 1) / rounds - all * r / rounds);
    }
    return times;
}

GhostSizes ghost_sizes(std::span<const Gradient> gradients, int rank) {
    GhostSizes sizes;
    for (const Gradient& g : gradients) {
        const std::int64_t own = g.shards.size(rank);
        sizes.own += own;
        sizes.others += g.shards.count() - own;
        sizes.parts += (g.shards.ranks() - 1) * own;
    }
    return sizes;
}

std::vector<Bucket> plan_buckets(std::span<const Gradient> gradients, int rank,
                                 const GhostMemory& memory, std::int64_t bucket_bytes,
                                 double bytes_per_second) {
    std::vector<std::int64_t> counts;
    for (const Gradient& g : gradients) counts.push_back(g.shards.count());
    std::vector<Bucket> out;
    Place at;
    std::size_t first = 0;
    for (const std::size_t end : bucket_ends(counts, bucket_bytes)) {
        out.push_back(
            plan_bucket(gradients.subspan(first, end - first), rank, memory, at, bytes_per_second));
        out.back().first = first;
        out.back().end = end;
        first = end;
    }
    return out;
}

float ghost_value(int rank, std::int64_t element) {
    const std::uint64_t bits =
        splitmix(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(element));
    const auto drawn = static_cast<std::int32_t>(bits >> 40) - (1 << 23);
    return static_cast<float>(drawn) * 0x1p-33f;
}

std::vector<float> expected_sums(std::span<const float> own, int rank, int ranks,
                                 ThreadPool& pool) {
    constexpr std::int64_t kPiece = 4096;
    std::vector<float> out(own.size());
    pool.parallel_for(std::ssize(own), kPiece, [&](std::int64_t begin, std::int64_t end, int) {
        const auto count = static_cast<std::size_t>(end - begin);
        std::vector<float> room(count * static_cast<std::size_t>(ranks));
        std::vector<float*> parts;
        for (int r = 0; r < ranks; ++r) {
            float* const part = room.data() + count * static_cast<std::size_t>(r);
            parts.push_back(part);
            for (std::int64_t i = begin; i < end; ++i) {
                part[i - begin] = r == rank ? own[static_cast<std::size_t>(i)] : ghost_value(r, i);
            }
        }
        comm::tree_sum(parts, end - begin);
        std::copy_n(parts[0], count, out.data() + begin);
    });
    return out;
}

std::vector<float> recorded_parts(std::span<const Gradient> gradients, int rank, ThreadPool& pool) {
    std::vector<float> out(static_cast<std::size_t>(ghost_sizes(gradients, rank).parts));
    float* to = out.data();
    for (const Gradient& g : gradients) {
        const std::int64_t own = g.shards.size(rank), first = g.begin + g.shards.begin(rank);
        for (int r = 0; r < g.shards.ranks(); ++r) {
            if (r == rank) continue;
            pool.parallel_for(own, 1 << 16, [&](std::int64_t begin, std::int64_t end, int) {
                for (std::int64_t i = begin; i < end; ++i) to[i] = ghost_value(r, first + i);
            });
            to += own;
        }
    }
    return out;
}

std::vector<float> shares_of_others(std::span<const Gradient> gradients, int rank,
                                    std::span<const float> flat) {
    std::vector<float> out(static_cast<std::size_t>(ghost_sizes(gradients, rank).others));
    float* to = out.data();
    for (const Gradient& g : gradients) {
        for (const Others& part : others_of(g.shards, rank)) {
            to =
                std::copy(flat.data() + g.begin + part.begin, flat.data() + g.begin + part.end, to);
        }
    }
    return out;
}

double Times::hidden() const {
    const double least = std::min(compute, communication);
    return least > 0 ? (compute + communication - both) / least : 0;
}

}  // namespace mr::overlap
