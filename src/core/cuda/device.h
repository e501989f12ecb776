// The GPU as the rest of the program sees it. Every header of this folder but *.cuh compiles
// without the CUDA toolkit; a build without it reports no device and the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/ledger.h"
#include "core/tensor.h"

// Forward declarations of the runtime's handle types, to avoid its headers.
struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace mr::cuda {

struct DeviceInfo {
    std::string name;
    int capability = 0;  // of the GPU: 90 means 9.0
    // The capability that this GPU's code was compiled for; kernels are chosen by it. A build for
    // older GPUs runs the older kernels on a newer GPU.
    int sm = 0;
    int multiprocessors = 0;
    std::uint64_t memory_bytes = 0;
    std::uint64_t free_bytes = 0;  // at the time of the call
    std::uint64_t l2_bytes = 0;
    std::size_t shared_per_block = 0;  // most a block may ask for
    int driver = 0, runtime = 0;       // 13000 is 13.0
};

// Whether this build has the CUDA engine.
bool built();
// The first visible GPU, if this build can use it.
std::optional<DeviceInfo> device();
// Why device() returned none, and what to do: one line.
std::string why_no_device();
// A GPU that is present but cannot be used (for example,
// this build has no code for it): its name, the reason, and
// what to do. Empty if there is no GPU, or the GPU is used.
std::string passed_over();
// The GPU, or Error (device) with why_no_device().
DeviceInfo require_device();

// Error (device) if the GPU has too little memory. A caller may recover from it.
class OutOfMemory : public Error {
  public:
    explicit OutOfMemory(ErrorInfo info) : Error(ErrorKind::device, std::move(info)) {}
};

// The properties that kernels are chosen by, `sm` as above, of the device that is current at the
// first call. The call neither probes the device nor asks for its free memory, so it is allowed
// while a stream is captured.
struct Gpu {
    int sm = 0, multiprocessors = 0;
    std::size_t l2_bytes = 0;
    std::size_t shared_per_block = 0;  // most a block may ask for
};
const Gpu& this_gpu();

// Bytes of all existing DeviceArenas, as requested; tests compare plans with it. Memory of the
// driver (code, contexts, graphs) is not included.
std::uint64_t held_bytes();

// Device memory, taken once and handed out front to back, as core/arena.h does for the host.
class DeviceArena {
  public:
    DeviceArena() = default;
    DeviceArena(std::string purpose, std::size_t bytes);  // OutOfMemory if not available
    ~DeviceArena();
    DeviceArena(DeviceArena&& other) noexcept;
    DeviceArena& operator=(DeviceArena&& other) noexcept;
    DeviceArena(const DeviceArena&) = delete;
    DeviceArena& operator=(const DeviceArena&) = delete;

    static constexpr std::size_t padded(std::size_t bytes) {
        return (bytes + kAlign - 1) / kAlign * kAlign;
    }
    void* alloc(std::size_t bytes);
    Tensor tensor(DType dtype, Shape shape) {
        return {alloc(dtype_bytes(dtype, static_cast<std::size_t>(shape.count()))), dtype, shape};
    }
    template <typename T>
    T* array(std::size_t count) {
        return static_cast<T*>(alloc(count * sizeof(T)));
    }
    void reset() { used_ = 0; }
    std::byte* data() const { return data_; }
    std::size_t used() const { return used_; }
    std::size_t size() const { return size_; }

  private:
    static constexpr std::size_t kAlign = 256;
    std::string purpose_;
    std::byte* data_ = nullptr;
    std::size_t size_ = 0, used_ = 0;
};

// Page-locked host memory that the device can also address.
class PinnedBuffer {
  public:
    PinnedBuffer() = default;
    explicit PinnedBuffer(std::size_t bytes);
    ~PinnedBuffer();
    PinnedBuffer(PinnedBuffer&& other) noexcept;
    PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
    PinnedBuffer(const PinnedBuffer&) = delete;
    PinnedBuffer& operator=(const PinnedBuffer&) = delete;

    std::byte* data() const { return data_; }
    std::byte* on_device() const { return device_; }  // the same memory, as kernels address it
    std::size_t size() const { return size_; }

  private:
    std::byte* data_ = nullptr;
    std::byte* device_ = nullptr;
    std::size_t size_ = 0;
};

class Event {
  public:
    explicit Event(bool timing = false);
    ~Event();
    Event(Event&& other) noexcept;
    Event& operator=(Event&& other) noexcept;
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    CUevent_st* raw() const { return event_; }
    bool done() const;  // true once all work before it is done
    void synchronize() const;
    double seconds_since(const Event& earlier) const;  // both made with timing

  private:
    CUevent_st* event_ = nullptr;
};

// An ordered queue of work on the device. Every copy goes through it and into the ledger.
class Stream {
  public:
    enum class Priority { normal, high };
    explicit Stream(Priority priority = Priority::normal);
    explicit Stream(CUstream_st* borrowed) : stream_(borrowed), owned_(false) {}
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    CUstream_st* raw() const { return stream_; }
    void synchronize() const;
    void record(const Event& event) const;
    void wait(const Event& event) const;
    // Asynchronous where the host memory is pinned. `ledger` may be null.
    void to_device(void* to, const void* from, std::size_t bytes, Ledger* ledger) const;
    void to_host(void* to, const void* from, std::size_t bytes, Ledger* ledger) const;
    void on_device(void* to, const void* from, std::size_t bytes) const;
    // Copies `rows` pieces of `bytes`; `to_step` and `from_step` are the bytes from one piece to
    // the next.
    void rows_on_device(void* to, std::size_t to_step, const void* from, std::size_t from_step,
                        std::size_t bytes, std::size_t rows) const;
    void fill(void* to, int byte, std::size_t bytes) const;

  private:
    CUstream_st* stream_ = nullptr;
    bool owned_ = true;
};

// Work captured once from a stream and replayed with one launch.
class Graph {
  public:
    Graph() = default;
    ~Graph();
    Graph(Graph&& other) noexcept;
    Graph& operator=(Graph&& other) noexcept;
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    // Captures what body() launches on `stream` and on streams joined to it by events.
    template <typename Body>
    static Graph capture(const Stream& stream, Body&& body) {
        begin(stream);
        try {
            body();
        } catch (...) {
            abandon(stream);
            throw;
        }
        return end(stream);
    }
    explicit operator bool() const { return exec_ != nullptr; }
    void launch(const Stream& stream) const;
    std::size_t nodes() const { return nodes_; }

  private:
    static void begin(const Stream& stream);
    static void abandon(const Stream& stream) noexcept;
    static Graph end(const Stream& stream);
    CUgraphExec_st* exec_ = nullptr;
    std::size_t nodes_ = 0;
};

}  // namespace mr::cuda
