#include "lab/streams/schedule.h"

#include <fmt/format.h>

#include <algorithm>

namespace mr::streams {
namespace {

constexpr std::size_t kAlign = 64;  // floats

const char* step_name(Step step) {
    switch (step) {
        case Step::copy_in:
            return "copy in";
        case Step::compute:
            return "compute";
        case Step::copy_out:
            return "copy out";
    }
    return "";
}

std::string op_name(const Op& op) {
    return fmt::format("{} of chunk {}", step_name(op.step), op.chunk);
}

Schedule empty(std::string name, const Cut& cut, int streams) {
    Schedule s;
    s.name = std::move(name);
    s.cut = cut;
    s.streams = streams;
    s.slots = cut.chunks;
    s.ops.reserve(3 * static_cast<std::size_t>(cut.chunks));
    return s;
}

// Appends an op and returns its index.
int add(Schedule& s, Step step, int chunk, int stream, std::vector<int> waits = {}) {
    s.ops.push_back({step, chunk, stream, chunk % s.slots, std::move(waits)});
    return static_cast<int>(s.ops.size()) - 1;
}

// For each op and stream: the last op of that stream that is done when the op begins, or -1. An op
// counts for its own stream.
std::vector<std::vector<int>> known_before(const Schedule& s) {
    const auto streams = static_cast<std::size_t>(s.streams);
    std::vector<std::vector<int>> known;
    std::vector<int> last(streams, -1);  // op of each stream
    const auto join = [&](std::vector<int>& into, int op) {
        const std::vector<int>& from = known[static_cast<std::size_t>(op)];
        for (std::size_t i = 0; i < streams; ++i) into[i] = std::max(into[i], from[i]);
    };
    for (std::size_t i = 0; i < s.ops.size(); ++i) {
        const Op& op = s.ops[i];
        std::vector<int> mine(streams, -1);
        int& before = last[static_cast<std::size_t>(op.stream)];
        if (before >= 0) join(mine, before);
        for (const int wait : op.waits) join(mine, wait);
        before = static_cast<int>(i);
        mine[static_cast<std::size_t>(op.stream)] = before;
        known.push_back(std::move(mine));
    }
    return known;
}

std::optional<Fault> malformed(const Schedule& s) {
    for (int i = 0; i < static_cast<int>(s.ops.size()); ++i) {
        const Op& op = s.ops[static_cast<std::size_t>(i)];
        if (op.chunk < 0 || op.chunk >= s.cut.chunks || op.stream < 0 || op.stream >= s.streams ||
            op.slot < 0 || op.slot >= s.slots) {
            return Fault{i, i, op_name(op) + ": no such chunk, stream or slot"};
        }
        for (const int wait : op.waits) {
            if (wait < 0 || wait >= i) return Fault{i, wait, op_name(op) + " waits for a later op"};
        }
    }
    return std::nullopt;
}

}  // namespace

std::size_t Cut::size(int i) const { return std::min(chunk, count - begin(i)); }

Cut cut_into(std::size_t count, int wanted) {
    const auto parts = static_cast<std::size_t>(std::max(wanted, 1));
    std::size_t chunk = (count + parts - 1) / parts;
    if (parts > 1) chunk = (chunk + kAlign - 1) / kAlign * kAlign;
    return {count, chunk, static_cast<int>((count + chunk - 1) / chunk)};
}

Schedule synchronous(std::size_t count) {
    Schedule s = empty("synchronous", cut_into(count, 1), 1);
    s.pinned = false;
    s.synchronous = true;
    for (const Step step : {Step::copy_in, Step::compute, Step::copy_out}) add(s, step, 0, 0);
    return s;
}

Schedule depth_first(const Cut& cut, int streams, bool pinned) {
    Schedule s = empty(fmt::format("{} stream{}", streams, streams == 1 ? "" : "s"), cut, streams);
    s.pinned = pinned;
    for (int i = 0; i < cut.chunks; ++i) {
        for (const Step step : {Step::copy_in, Step::compute, Step::copy_out}) {
            add(s, step, i, i % streams);
        }
    }
    return s;
}

Schedule breadth_first_in_rounds(const Cut& cut, int streams) {
    Schedule s = empty("breadth-first in rounds", cut, streams);
    for (int first = 0; first < cut.chunks; first += streams) {
        const int end = std::min(first + streams, cut.chunks);
        for (const Step step : {Step::copy_in, Step::compute, Step::copy_out}) {
            for (int i = first; i < end; ++i) add(s, step, i, i % streams);
        }
    }
    return s;
}

Schedule breadth_first(const Cut& cut, int streams) {
    Schedule s = empty("breadth-first", cut, streams);
    for (const Step step : {Step::copy_in, Step::compute, Step::copy_out}) {
        for (int i = 0; i < cut.chunks; ++i) add(s, step, i, i % streams);
    }
    return s;
}

Schedule stream_per_direction(const Cut& cut, int for_kernels) {
    Schedule s =
        empty(for_kernels == 1 ? std::string("a stream per direction")
                               : fmt::format("a stream per direction, {} for kernels", for_kernels),
              cut, 2 + for_kernels);
    for (int i = 0; i < cut.chunks; ++i) {
        const int in = add(s, Step::copy_in, i, 0);
        const int computed = add(s, Step::compute, i, 1 + i % for_kernels, {in});
        add(s, Step::copy_out, i, 1 + for_kernels, {computed});
    }
    return s;
}

Schedule copy_and_compute(const Cut& cut) {
    constexpr int kSlots = 2, kCopies = 0, kKernels = 1;
    Schedule s = empty("copy and compute stream", cut, 2);
    s.slots = std::min(kSlots, cut.chunks);
    std::vector<int> in;  // op of each chunk
    for (int i = 0; i < s.slots; ++i) in.push_back(add(s, Step::copy_in, i, kCopies));
    for (int i = 0; i < cut.chunks; ++i) {
        const int computed = add(s, Step::compute, i, kKernels, {in[static_cast<std::size_t>(i)]});
        add(s, Step::copy_out, i, kCopies, {computed});
        // The next chunk in this slot follows its copy out on the same stream.
        if (i + s.slots < cut.chunks) in.push_back(add(s, Step::copy_in, i + s.slots, kCopies));
    }
    return s;
}

Schedule as_graph(Schedule schedule) {
    schedule.name += ", as a graph";
    schedule.graph = true;
    return schedule;
}

std::optional<Fault> fault_in(const Schedule& s) {
    if (const auto fault = malformed(s)) return fault;
    const auto known = known_before(s);
    const auto is_before = [&](int first, int second) {
        const Op& op = s.ops[static_cast<std::size_t>(first)];
        return known[static_cast<std::size_t>(second)][static_cast<std::size_t>(op.stream)] >=
               first;
    };
    std::vector<int> last(static_cast<std::size_t>(s.slots), -1);      // op that touched each slot
    std::vector<int> done(static_cast<std::size_t>(s.cut.chunks), 0);  // steps of each chunk
    for (int i = 0; i < static_cast<int>(s.ops.size()); ++i) {
        const Op& op = s.ops[static_cast<std::size_t>(i)];
        int& steps = done[static_cast<std::size_t>(op.chunk)];
        if (static_cast<int>(op.step) != steps++) {
            return Fault{i, i, op_name(op) + " is out of order"};
        }
        int& before = last[static_cast<std::size_t>(op.slot)];
        if (before >= 0) {
            const Op& other = s.ops[static_cast<std::size_t>(before)];
            if (other.chunk != op.chunk && other.step != Step::copy_out) {
                return Fault{before, i, op_name(op) + " overwrites " + op_name(other)};
            }
            if (!is_before(before, i)) {
                return Fault{before, i, op_name(op) + " does not wait for " + op_name(other)};
            }
        }
        before = i;
    }
    for (int chunk = 0; chunk < s.cut.chunks; ++chunk) {
        if (done[static_cast<std::size_t>(chunk)] != 3) {
            return Fault{-1, -1, fmt::format("chunk {} lacks a step", chunk)};
        }
    }
    return std::nullopt;
}

}  // namespace mr::streams
