#include "observe/compute_peak.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "core/ledger.h"
#include "observe/peak_kernels.h"

namespace mr::observe {
namespace {

using PeakKernel = std::int64_t (*)(std::int64_t rounds);

double best_rate(ThreadPool& pool, PeakKernel kernel, double seconds) {
    if (kernel(1) == 0) return 0;
    // A pass takes about 0.3 ms: short enough that some meet no other process. It has several
    // pieces for each thread, so that threads end together.
    constexpr double kPieceSeconds = 30e-6;
    constexpr std::int64_t kPiecesPerThread = 10;
    constexpr int kFewest = 20;
    std::int64_t rounds = 256;
    for (double took = 0; took < kPieceSeconds / 2; rounds *= 2) {
        const Moment start = Moment::now();
        kernel(rounds);
        took = Moment::now().seconds_since(start);
    }
    const std::int64_t pieces = kPiecesPerThread * pool.size();
    double best = 0;
    const Moment begin = Moment::now();
    for (int pass = 0; pass < kFewest || Moment::now().seconds_since(begin) < seconds; ++pass) {
        std::int64_t flops = 0;
        const Moment start = Moment::now();
        pool.parallel_for(pieces, 1, [&](std::int64_t piece, std::int64_t, int) {
            const std::int64_t done = kernel(rounds);
            if (piece == 0) flops = done * pieces;
        });
        best = std::max(best, static_cast<double>(flops) / Moment::now().seconds_since(start));
    }
    return best;
}

}  // namespace

ComputePeak measure_compute_peak(ThreadPool& pool, double seconds) {
    const auto rate = [&](PeakKernel kernel) { return best_rate(pool, kernel, seconds); };
    return {rate(MR_DISPATCH_IN(::mr::observe, peak_f32)),
            rate(MR_DISPATCH_IN(::mr::observe, peak_int8)),
            rate(MR_DISPATCH_IN(::mr::observe, peak_bf16))};
}

ComputePeak compute_peak(ThreadPool& pool) {
    static std::mutex mutex;
    static std::map<std::pair<Isa, int>, ComputePeak> known;
    const std::lock_guard lock(mutex);
    const auto [at, added] = known.try_emplace({active_isa(), pool.size()});
    if (added) at->second = measure_compute_peak(pool);
    return at->second;
}

}  // namespace mr::observe
