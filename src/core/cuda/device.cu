#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/arena.h"
#include "core/cuda/device.h"
#include "core/cuda/kernel.cuh"
#include "core/cuda/limits.h"
#include "core/error.h"

namespace mr::cuda {
namespace {

__global__ void probe() {}

// Kernels that are only checked (MILLRACE_CUDA_OPTIMIZE=OFF) may be slow, or need more registers
// than a launch has.
#ifdef MR_CUDA_NOT_OPTIMIZED
constexpr bool kernels_optimized = false;
#else
constexpr bool kernels_optimized = true;
#endif

// The value of DeviceInfo::sm.
int code_of(int capability) {
    cudaFuncAttributes attributes{};
    MR_CUDA_CALL(cudaFuncGetAttributes(&attributes, probe));
    return std::min(capability, attributes.ptxVersion);
}

std::string last_problem;  // set by probe_device(), which runs once
bool is_there = false;     // whether the system has a GPU at all

std::atomic<std::uint64_t> held{0};

std::string remedy_of(cudaError_t status) {
    switch (status) {
        case cudaErrorMemoryAllocation:
            return "use a shorter context or a smaller weight type, or end other programs on the "
                   "GPU";
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver:
        case cudaErrorSystemDriverMismatch:
            return "install the NVIDIA driver of this GPU, or use --device cpu";
        case cudaErrorNoKernelImageForDevice:
            return "build on this machine, or for its GPU: cmake -DMILLRACE_CUDA_ARCH=..., or use "
                   "--device cpu";
        case cudaErrorDevicesUnavailable:
        case cudaErrorDeviceNotLicensed:
        case cudaErrorECCUncorrectable:
        case cudaErrorNvlinkUncorrectable:
        case cudaErrorContained:
        case cudaErrorHardwareStackError:
        case cudaErrorSystemNotReady:
            return "the GPU is lost or taken: nvidia-smi and the system's log say why; reset it, "
                   "or use --device cpu";
        default:
            return "start again; if it stays, use --device cpu and report it";
    }
}

// Where the system shows no GPU.
std::string no_gpu_found() {
    if (kernels_optimized) {
        return "no GPU found; where there is one, install its NVIDIA driver, or use --device cpu";
    }
    return "no GPU found, and this build's kernels are not optimised; on a machine with a GPU, "
           "install its NVIDIA driver and build again, or use --device cpu";
}

std::string problem_of(cudaError_t status) {
    if (!kernels_optimized && status == cudaErrorNoKernelImageForDevice) {
        return "this build's kernels are not optimised (MILLRACE_CUDA_OPTIMIZE)";
    }
    return cudaGetErrorString(status);
}

// Of a GPU that has these, or less if a test asks for less.
Limits limits_of(std::size_t shared_per_block, int multiprocessors) {
    const char* wish = std::getenv("MILLRACE_GPU_LIMITS");
    return lowered({shared_per_block, multiprocessors}, wish ? wish : "");
}

DeviceInfo describe() {
    cudaDeviceProp prop{};
    MR_CUDA_CALL(cudaGetDeviceProperties(&prop, 0));
    DeviceInfo info;
    info.name = prop.name;
    info.capability = prop.major * 10 + prop.minor;
    info.sm = code_of(info.capability);
    const Limits limits = limits_of(prop.sharedMemPerBlockOptin, prop.multiProcessorCount);
    info.multiprocessors = limits.multiprocessors;
    info.memory_bytes = prop.totalGlobalMem;
    info.l2_bytes = static_cast<std::uint64_t>(prop.l2CacheSize);
    info.shared_per_block = limits.shared_per_block;
    MR_CUDA_CALL(cudaDriverGetVersion(&info.driver));
    MR_CUDA_CALL(cudaRuntimeGetVersion(&info.runtime));
    return info;
}

// Looks for a GPU and runs an empty kernel on it: the build may have no code for the device.
std::optional<DeviceInfo> probe_device() {
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count == 0) status = cudaErrorNoDevice;
    if (status == cudaSuccess) status = cudaSetDevice(0);
    if (status == cudaSuccess && !kernels_optimized) status = cudaErrorNoKernelImageForDevice;
    if (status == cudaSuccess) {
        probe<<<1, 1>>>();
        status = cudaGetLastError();
    }
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    if (status != cudaSuccess) {
        cudaGetLastError();
        int driver = 0;  // 0: no driver, which the runtime reports as "too old"
        const bool none = status == cudaErrorNoDevice ||
                          (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0);
        last_problem = none ? no_gpu_found() : problem_of(status) + "; " + remedy_of(status);
        cudaDeviceProp prop{};
        is_there = count > 0 && cudaGetDeviceProperties(&prop, 0) == cudaSuccess;
        if (is_there) {
            last_problem = std::string(prop.name) + ", compute capability " +
                           std::to_string(prop.major) + "." + std::to_string(prop.minor) + ": " +
                           last_problem;
        }
        return std::nullopt;
    }
    return describe();
}

const std::optional<DeviceInfo>& found() {
    static const std::optional<DeviceInfo> info = probe_device();
    return info;
}

}  // namespace

const Gpu& this_gpu() {
    static const Gpu found = [] {
        int device = 0, major = 0, minor = 0, count = 0, l2 = 0, shared = 0;
        if (!kernels_optimized) MR_CUDA_CALL(cudaErrorNoKernelImageForDevice);
        MR_CUDA_CALL(cudaGetDevice(&device));
        MR_CUDA_CALL(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
        MR_CUDA_CALL(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
        MR_CUDA_CALL(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
        MR_CUDA_CALL(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device));
        MR_CUDA_CALL(
            cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
        const Limits limits = limits_of(static_cast<std::size_t>(shared), count);
        return Gpu{code_of(major * 10 + minor), limits.multiprocessors,
                   static_cast<std::size_t>(l2), limits.shared_per_block};
    }();
    return found;
}

void call_failed(cudaError_t status, const char* call, const char* file, int line) {
    cudaGetLastError();  // clears the error, so that later calls do not report it
    ErrorInfo info{.field = "CUDA",
                   .value = cudaGetErrorName(status),
                   .problem = problem_of(status) + " (" + call + ", " + file + ":" +
                              std::to_string(line) + ")",
                   .remedy = remedy_of(status)};
    if (status == cudaErrorMemoryAllocation) throw OutOfMemory(std::move(info));
    throw Error::device(std::move(info));
}

// Two kernels share a multiprocessor only where both ask for the same split between L1 and shared
// memory; a change of the split waits until the multiprocessor is empty. So all kernels ask for the
// same split.
void prepare_kernel(const void* kernel) {
    static std::mutex guard;
    static std::unordered_set<const void*> prepared;
    const std::lock_guard lock(guard);
    if (!prepared.insert(kernel).second) return;
    MR_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                      cudaSharedmemCarveoutMaxShared));
}

void raise_shared(const void* kernel, std::size_t bytes) {
    static std::mutex guard;
    static std::unordered_map<const void*, std::size_t> raised;
    const std::lock_guard lock(guard);
    std::size_t& limit = raised[kernel];
    if (limit >= bytes) return;
    cudaFuncAttributes attributes{};
    MR_CUDA_CALL(cudaFuncGetAttributes(&attributes, kernel));
    MR_CHECK(attributes.sharedSizeBytes + bytes <= this_gpu().shared_per_block,
             "a kernel asks for no more shared memory than this GPU gives a block");
    MR_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(bytes)));
    limit = bytes;
}

bool built() { return true; }

std::optional<DeviceInfo> device() {
    std::optional<DeviceInfo> info = found();
    if (info) {
        std::size_t free = 0, total = 0;
        MR_CUDA_CALL(cudaMemGetInfo(&free, &total));
        info->free_bytes = free;
    }
    return info;
}

std::string why_no_device() { return found() ? "" : last_problem; }
std::string passed_over() { return !found() && is_there ? last_problem : ""; }

std::uint64_t held_bytes() { return held; }

DeviceArena::DeviceArena(std::string purpose, std::size_t bytes)
    : purpose_(std::move(purpose)), size_(padded(bytes)) {
    if (size_ == 0) return;
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, size_);
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        throw OutOfMemory(
            {.field = purpose_,
             .value = format_bytes(size_),
             .problem = "not enough GPU memory (" + format_bytes(device()->free_bytes) + " free)",
             .remedy = remedy_of(status)});
    }
    MR_CUDA_CALL(status);
    data_ = static_cast<std::byte*>(data);
    held += size_;
}

DeviceArena::~DeviceArena() {
    if (!data_) return;
    cudaFree(data_);
    held -= size_;
}
DeviceArena::DeviceArena(DeviceArena&& other) noexcept { *this = std::move(other); }
DeviceArena& DeviceArena::operator=(DeviceArena&& other) noexcept {
    std::swap(purpose_, other.purpose_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(used_, other.used_);
    return *this;
}

void* DeviceArena::alloc(std::size_t bytes) {
    const std::size_t take = padded(bytes);
    MR_CHECK(take <= size_ - used_, "the arena was planned large enough");
    std::byte* at = data_ + used_;
    used_ += take;
    return at;
}

PinnedBuffer::PinnedBuffer(std::size_t bytes) : size_(bytes) {
    void *data = nullptr, *device = nullptr;
    MR_CUDA_CALL(cudaHostAlloc(&data, bytes, cudaHostAllocMapped));
    data_ = static_cast<std::byte*>(data);
    MR_CUDA_CALL(cudaHostGetDevicePointer(&device, data, 0));
    device_ = static_cast<std::byte*>(device);
}
PinnedBuffer::~PinnedBuffer() {
    if (data_) cudaFreeHost(data_);
}
PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(device_, other.device_);
    std::swap(size_, other.size_);
    return *this;
}

Event::Event(bool timing) {
    MR_CUDA_CALL(
        cudaEventCreateWithFlags(&event_, timing ? cudaEventDefault : cudaEventDisableTiming));
}
Event::~Event() {
    if (event_) cudaEventDestroy(event_);
}
Event::Event(Event&& other) noexcept { *this = std::move(other); }
Event& Event::operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
}
bool Event::done() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    MR_CUDA_CALL(status);
    return true;
}
void Event::synchronize() const { MR_CUDA_CALL(cudaEventSynchronize(event_)); }
double Event::seconds_since(const Event& earlier) const {
    float ms = 0;
    MR_CUDA_CALL(cudaEventElapsedTime(&ms, earlier.event_, event_));
    return static_cast<double>(ms) * 1e-3;
}

Stream::Stream(Priority priority) {
    int least = 0, greatest = 0;
    MR_CUDA_CALL(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    MR_CUDA_CALL(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                              priority == Priority::high ? greatest : least));
}
Stream::~Stream() {
    if (stream_ && owned_) cudaStreamDestroy(stream_);
}
void Stream::synchronize() const { MR_CUDA_CALL(cudaStreamSynchronize(stream_)); }
void Stream::record(const Event& event) const {
    MR_CUDA_CALL(cudaEventRecord(event.raw(), stream_));
}
void Stream::wait(const Event& event) const {
    MR_CUDA_CALL(cudaStreamWaitEvent(stream_, event.raw(), 0));
}
// Returns seconds if the ledger asks for them, else 0.
static double copy(const Stream& stream, void* to, const void* from, std::size_t bytes,
                   cudaMemcpyKind kind, const Ledger* ledger) {
    const bool timed = ledger && ledger->times_copies();
    if (timed) stream.synchronize();
    const Moment start = timed ? Moment::now() : Moment{};
    MR_CUDA_CALL(cudaMemcpyAsync(to, from, bytes, kind, stream.raw()));
    if (!timed) return 0;
    stream.synchronize();
    return Moment::now().seconds_since(start);
}
void Stream::to_device(void* to, const void* from, std::size_t bytes, Ledger* ledger) const {
    if (bytes == 0) return;
    const double seconds = copy(*this, to, from, bytes, cudaMemcpyHostToDevice, ledger);
    if (ledger) ledger->add_host_to_device(bytes, seconds);
}
void Stream::to_host(void* to, const void* from, std::size_t bytes, Ledger* ledger) const {
    if (bytes == 0) return;
    const double seconds = copy(*this, to, from, bytes, cudaMemcpyDeviceToHost, ledger);
    if (ledger) ledger->add_device_to_host(bytes, seconds);
}
void Stream::on_device(void* to, const void* from, std::size_t bytes) const {
    MR_CUDA_CALL(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
}
void Stream::rows_on_device(void* to, std::size_t to_step, const void* from, std::size_t from_step,
                            std::size_t bytes, std::size_t rows) const {
    MR_CUDA_CALL(cudaMemcpy2DAsync(to, to_step, from, from_step, bytes, rows,
                                   cudaMemcpyDeviceToDevice, stream_));
}
void Stream::fill(void* to, int byte, std::size_t bytes) const {
    MR_CUDA_CALL(cudaMemsetAsync(to, byte, bytes, stream_));
}

Graph::~Graph() {
    if (exec_) cudaGraphExecDestroy(exec_);
}
Graph::Graph(Graph&& other) noexcept { *this = std::move(other); }
Graph& Graph::operator=(Graph&& other) noexcept {
    std::swap(exec_, other.exec_);
    std::swap(nodes_, other.nodes_);
    return *this;
}
void Graph::begin(const Stream& stream) {
    MR_CUDA_CALL(cudaStreamBeginCapture(stream.raw(), cudaStreamCaptureModeThreadLocal));
}
void Graph::abandon(const Stream& stream) noexcept {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream.raw(), &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
}
Graph Graph::end(const Stream& stream) {
    cudaGraph_t graph = nullptr;
    MR_CUDA_CALL(cudaStreamEndCapture(stream.raw(), &graph));
    Graph out;
    cudaError_t status = cudaGraphGetNodes(graph, nullptr, &out.nodes_);
    if (status == cudaSuccess) status = cudaGraphInstantiate(&out.exec_, graph, 0);
    cudaGraphDestroy(graph);
    MR_CUDA_CALL(status);
    return out;
}
void Graph::launch(const Stream& stream) const {
    MR_CHECK(exec_ != nullptr, "something was captured");
    MR_CUDA_CALL(cudaGraphLaunch(exec_, stream.raw()));
}

}  // namespace mr::cuda
