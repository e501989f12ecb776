// Schedules to move an array to the device, compute on it and move it back: which step of which
// chunk goes to which stream, in what order, and what waits for what. Plain data: streams_cuda.cpp
// and its parts issue it, and the order of all accesses is checked without a GPU.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mr::streams {

enum class Step { copy_in, compute, copy_out };

// One call. It follows the earlier calls on its stream.
struct Op {
    Step step;
    int chunk;
    int stream;
    int slot;                  // the chunk's place on the device
    std::vector<int> waits{};  // earlier ops of other streams, by index: joined by events
};

// The array in chunks of `chunk` floats; the last one may have fewer.
struct Cut {
    std::size_t count = 0, chunk = 0;
    int chunks = 0;

    std::size_t begin(int i) const { return static_cast<std::size_t>(i) * chunk; }
    std::size_t size(int i) const;  // floats of chunk i
};
// At most `wanted` chunks, each but the last a multiple of 256 bytes.
Cut cut_into(std::size_t count, int wanted);

struct Schedule {
    std::string name;
    Cut cut;
    int streams = 1;
    int slots = 1;  // chunks on the device; chunk i is in slot i % slots
    bool pinned = true;
    bool synchronous = false;  // the host waits for every call
    bool graph = false;        // captured once, launched as one graph
    std::vector<Op> ops;       // in the order of issue
};

// One chunk, one step at a time, pageable memory: the reference.
Schedule synchronous(std::size_t count);
// Chunk i on stream i % streams. Depth-first: all three steps of a chunk, then the next chunk.
Schedule depth_first(const Cut& cut, int streams, bool pinned);
// Rounds of `streams` chunks: their copies in, their kernels, their copies out, the next round.
Schedule breadth_first_in_rounds(const Cut& cut, int streams);
// All copies in, then all kernels, then all copies out.
Schedule breadth_first(const Cut& cut, int streams);
// A stream for copies in, one for copies out, and `for_kernels` between them.
Schedule stream_per_direction(const Cut& cut, int for_kernels);
// One stream for all copies and one for kernels; the device holds two chunks.
Schedule copy_and_compute(const Cut& cut);
// The same calls, captured as a graph.
Schedule as_graph(Schedule schedule);

// Two ops that use one slot and are not ordered by a stream or by events; none if every pair is
// ordered, and every chunk is copied in, computed and copied out once.
struct Fault {
    int first, second;  // ops; -1: an op is missing
    std::string what;
};
std::optional<Fault> fault_in(const Schedule& schedule);

}  // namespace mr::streams
