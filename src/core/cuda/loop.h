// Device work that repeats until a kernel ends it: captured once, launched once.
#pragma once

#include <cstddef>
#include <utility>

#include "core/cuda/device.h"

struct CUgraph_st;

namespace mr::cuda {

class LoopGraph {
  public:
    // Names the loop in kernels (loop.cuh); 0: none.
    using Loop = unsigned long long;

    // Whether the driver has loops: one for CUDA 12.4 or later.
    static bool possible();
    // first(loop), then again(loop) for as long as the last call of loop_again() asked for it. Both
    // may only launch work on `stream`.
    template <typename First, typename Again>
    static LoopGraph capture(const Stream& stream, First&& first, Again&& again) {
        Building building{stream};
        building.begin();
        first(building.loop);
        building.enter();
        again(building.loop);
        return building.end();
    }

    LoopGraph() = default;
    ~LoopGraph();
    LoopGraph(LoopGraph&& other) noexcept { *this = std::move(other); }
    LoopGraph& operator=(LoopGraph&& other) noexcept {
        std::swap(exec_, other.exec_);
        std::swap(graph_, other.graph_);
        return *this;
    }
    LoopGraph(const LoopGraph&) = delete;
    LoopGraph& operator=(const LoopGraph&) = delete;

    explicit operator bool() const { return exec_ != nullptr; }
    void launch(const Stream& stream) const;

  private:
    // The graph while it is captured.
    struct Building {
        explicit Building(const Stream& on) : stream(on) {}
        ~Building();
        Building(const Building&) = delete;
        Building& operator=(const Building&) = delete;
        void begin();
        void enter();  // begins the capture of the body
        void capture_into(CUgraph_st* into);
        LoopGraph end();

        const Stream& stream;
        CUgraph_st* graph = nullptr;
        Loop loop = 0;
        bool capturing = false;
    };
    CUgraphExec_st* exec_ = nullptr;
    // The graph that exec_ was made from. A launch may attach data to the graph that captures it
    // (attention: a counter), and the loop's body is part of this graph. So it is kept while exec_
    // can run.
    CUgraph_st* graph_ = nullptr;
};

}  // namespace mr::cuda
