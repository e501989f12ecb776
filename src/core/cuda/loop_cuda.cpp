#include "core/cuda/loop.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "core/cuda/check.h"
#include "core/error.h"

namespace mr::cuda {

LoopGraph::~LoopGraph() {
    if (exec_) cudaGraphExecDestroy(exec_);
    if (graph_) cudaGraphDestroy(graph_);
}

void LoopGraph::launch(const Stream& stream) const {
    MR_CHECK(exec_ != nullptr, "something was captured");
    MR_CUDA_CALL(cudaGraphLaunch(exec_, stream.raw()));
}

// Before CUDA 13, functions that take edge data had other names.
#if CUDART_VERSION >= 13000
#define MR_CAPTURE_INFO cudaStreamGetCaptureInfo
#define MR_ADD_NODE cudaGraphAddNode
#else
#define MR_CAPTURE_INFO cudaStreamGetCaptureInfo_v3
#define MR_ADD_NODE cudaGraphAddNode_v2
#endif

bool LoopGraph::possible() {
    static const bool possible = [] {
        int driver = 0;
        return cudaDriverGetVersion(&driver) == cudaSuccess && driver >= 12040;
    }();
    return possible;
}

void LoopGraph::Building::begin() {
    MR_CUDA_CALL(cudaGraphCreate(&graph, 0));
    // The body runs unless a kernel of the first part says otherwise.
    MR_CUDA_CALL(cudaGraphConditionalHandleCreate(&loop, graph, 1, cudaGraphCondAssignDefault));
    capture_into(graph);
}

void LoopGraph::Building::capture_into(CUgraph_st* into) {
    MR_CUDA_CALL(cudaStreamBeginCaptureToGraph(stream.raw(), into, nullptr, nullptr, 0,
                                               cudaStreamCaptureModeThreadLocal));
    capturing = true;
}

void LoopGraph::Building::enter() {
    cudaStreamCaptureStatus status{};
    const cudaGraphNode_t* last = nullptr;
    const cudaGraphEdgeData* edges = nullptr;
    std::size_t count = 0;
    MR_CUDA_CALL(MR_CAPTURE_INFO(stream.raw(), &status, nullptr, nullptr, &last, &edges, &count));
    const std::vector<cudaGraphNode_t> before(last, last + count);
    cudaGraph_t captured = nullptr;
    capturing = false;
    MR_CUDA_CALL(cudaStreamEndCapture(stream.raw(), &captured));
    cudaGraphNodeParams params{};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = loop;
    params.conditional.type = cudaGraphCondTypeWhile;
    params.conditional.size = 1;
    cudaGraphNode_t node = nullptr;
    MR_CUDA_CALL(MR_ADD_NODE(&node, graph, before.data(), nullptr, before.size(), &params));
    capture_into(params.conditional.phGraph_out[0]);
}

LoopGraph LoopGraph::Building::end() {
    cudaGraph_t captured = nullptr;
    capturing = false;
    MR_CUDA_CALL(cudaStreamEndCapture(stream.raw(), &captured));
    LoopGraph out;
    MR_CUDA_CALL(cudaGraphInstantiate(&out.exec_, graph, 0));
    out.graph_ = std::exchange(graph, nullptr);
    return out;
}

LoopGraph::Building::~Building() {
    cudaGraph_t captured = nullptr;  // part of `graph`
    if (capturing) cudaStreamEndCapture(stream.raw(), &captured);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();  // clears the error of the abandoned capture
}

}  // namespace mr::cuda
