// The loading warps of a step: they fill the ring buffer with weights, and if there are views
// (step_view.cuh) with keys and values, in phase order.
#pragma once

#include "ops/step/step_params.cuh"
#include "ops/step/step_view.cuh"

namespace mr::cuda::step {

// A warp's position in the ring buffer: the next stage, and the parity of the pass through the
// ring.
struct Place {
    int stage = 0;
    unsigned parity;
    __device__ __forceinline__ void next(int stages) {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

struct Barriers {
    std::uint64_t full[kMostStages], empty[kMostStages];
};

__device__ __forceinline__ int first_tile(int first_block) {
    const int at = static_cast<int>(blockIdx.x) - first_block;
    return at < 0 ? at + static_cast<int>(gridDim.x) : at;
}

template <bool kView>
__device__ __forceinline__ Source source_of(const Phase& phase) {
    const Params& p = phase.p;
    return {kView ? phase.keys : nullptr,
            kView && phase.keys ? static_cast<const std::byte*>(phase.values) : p.w,
            static_cast<int>(p.k),
            p.n,
            phase.keys ? 0 : p.tiles,
            p.lower,
            p.finish == Finish::gate || phase.half ? kTileRows / 2 : kTileRows,
            phase.first_block,
            phase.half};
}

// The loading warps' positions in the ring, as warp 0 passes them to the others.
struct Fetching {
    int stage, oldest_stage, under_way;
    unsigned parity, oldest_parity;
};

// The loading warps: they load all weights of this block's tiles as fast as the ring empties, and
// with kView the keys and values of its teams.
template <typename R, typename T, int D, bool kView>
__device__ void fetch_all(const Args& a, unsigned ring, const Barriers& barriers, View& view,
                          Fetching* common_state) {
    const int lane = static_cast<int>(threadIdx.x) - kMultiplying;
    const unsigned full = shared_address(barriers.full), empty = shared_address(barriers.empty);
    const std::uint64_t policy = read_once_policy();
    Place place{0, 1};   // at first all stages are free
    Place oldest{0, 0};  // oldest stage in flight
    int under_way = 0;
    const auto free_stage = [&](int flight) {
        // More loads in flight than memory needs would only delay other reads and writes.
        while (under_way >= flight) {
            barrier_wait(full + oldest.stage * 8, oldest.parity);
            oldest.next(a.stages);
            --under_way;
        }
        ++under_way;
        barrier_wait(empty + place.stage * 8, place.parity);
        return ring + place.stage * R::kStageBytes;
    };
    const auto load_phase = [&](const Source& source) {
        for (int tile = first_tile(source.first_block); tile < source.tiles;
             tile += static_cast<int>(gridDim.x)) {
            typename R::Fetch fetch = R::begin(source, tile, lane);
            while (fetch.left > 0) {
                const unsigned to = free_stage(a.flight);
                R::template stage<kView>(fetch, to, full + place.stage * 8, policy, lane);
                place.next(a.stages);
            }
        }
    };
    if constexpr (!kView) {
        Source source = source_of<kView>(a.phases[0]);
        for (int i = 0; i < a.count; ++i) {
            const Source next = source_of<kView>(a.phases[min(i + 1, a.count - 1)]);  // prefetch
            load_phase(source);
            source = next;
        }
    } else {
        // Warps that load no weights skip from attention to attention.
        const bool weights = lane < R::kFetching;
        Source source = source_of<kView>(a.phases[0]);
        if (weights) load_phase(source);  // weights are no results of earlier kernels
        wait_for_previous();
        const WarpsTeam<kKeyFetching> team{kMultiplying, 2 + kTeams};
        if (lane == 0) view.make(a.attention);
        team.sync();
        const KeyFetch<T, D> keys(a.attention, view, lane);
        // As many bytes in flight as for weights.
        const int flight = min(a.flight * R::kStageBytes / KeyStage<D>::kBytes, a.stages);
        bool odd = false;
        source = source_of<kView>(a.phases[min(1, a.count - 1)]);
        for (int i = 1; i < a.count; ++i) {
            const Source next = source_of<kView>(a.phases[min(i + 1, a.count - 1)]);
            if (!source.keys) {
                if (weights) load_phase(source);
                source = next;
                continue;
            }
            if constexpr (R::kFetching < kKeyFetching) {
                Fetching& state = common_state[odd ? 1 : 0];
                if (lane == 0) {
                    state = {place.stage, oldest.stage, under_way, place.parity, oldest.parity};
                }
                team.sync();
                place = {state.stage, state.parity};
                oldest = {state.oldest_stage, state.oldest_parity};
                under_way = state.under_way;
                odd = !odd;
            }
            keys.all(
                a.attention, view, source.keys, source.w, [&] { return free_stage(flight); },
                [&] {
                    R::arrive_after_copies(full + place.stage * 8, lane);
                    place.next(a.stages);
                });
            source = next;
        }
    }
}

}  // namespace mr::cuda::step
