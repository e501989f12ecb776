// The sampler on the GPU: ops::sample() for many rows at once, with logits and all parameters in
// device memory. The kernel writes a drawn id to the memory from which the next step reads it, and
// to a ring buffer in host memory, so the host learns it without a copy or a synchronisation.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/context.h"
#include "core/cuda/device.h"
#include "ops/sample/sample.h"

namespace mr::cuda {

// The sampling state of one row, in device memory. The kernel advances `position` and the recent
// tokens after every draw.
//
// The state of a row is its SampleRow, its ring of recent tokens and its id in next_ids, and
// nothing else. A copy of these three to another row, on the stream, moves it: that row then draws
// what this one would have drawn (Sampler::copy_row()). The number of steps and the ring in host
// memory belong to the row's number and are not moved.
struct SampleRow {
    float temperature, top_p, min_p, repeat_penalty;
    std::int32_t top_k;
    std::int32_t active;  // 0: the row is skipped
    std::uint64_t seed;
    std::int64_t position;  // of the token drawn next: Philox's index
    // The tokens of the penalty: the first recent_used of the row's ring, in any order. With a
    // window the ring has that many slots and wraps; without one it does not change.
    std::int32_t window;       // how many recent tokens count, at most SampleState::most_recent
    std::int32_t recent_used;  // number of tokens in the ring
    std::int32_t recent_next;  // slot of the next one
    std::int32_t step;         // Philox's stream: 0 except in diffusion
};

// Why a row has no token. The id is then 0, so that a step that was already launched reads a valid
// one.
enum SampleFlag : std::uint32_t {
    kSampleNan = 1,       // a logit is not a number
    kSampleNone = 2,      // no token is possible: all are -inf
    kSampleInactive = 4,  // the row is skipped
    kSampleKind = 8,      // the greedy kernel got a row that is not greedy
};

// One draw as the host reads it: 16 bytes. `tag` is written last: the low 28 bits of the step's
// number counted from 1, then 4 bits of flags.
struct SampleSlot {
    std::int32_t id;
    float probability;
    float confidence;
    std::uint32_t tag;
};

// The rows and the results of a launch. All are device addresses; any result may be null.
struct SampleState {
    SampleRow* rows = nullptr;       // [rows]
    std::int32_t* recent = nullptr;  // [rows, most_recent]  rings of recent tokens
    int most_recent = 0;             // 0: no row has recent tokens
    std::uint64_t* steps = nullptr;  // [rows]  draws of this row so far; null: no ring
    SampleSlot* ring = nullptr;      // [rows, ring_slots]  host memory; step s is in s % ring_slots
    int ring_slots = 0;
    std::int32_t* next_ids = nullptr;  // [rows]  what the next step reads
    float* probability = nullptr;      // [rows]
    float* confidence = nullptr;       // [rows]
    std::uint32_t* flags = nullptr;    // [rows]
};

enum class SampleKind {
    any,
    greedy,  // every row has temperature 0: uses a separate kernel
};

// Draws one token per row from logits f32 [rows, vocab], by the rules of ops::sample(). The bits of
// a row do not depend on the other rows, nor on `team`, the number of blocks that share a row (a
// cluster of 2, 4, 8 or 16 on sm_90, 1 on every device; 0: the fastest). Weights are summed as
// integers, so that the order of additions does not change the sum; they agree with the CPU's to
// 2^-44 of the best one's. A row has at most 2^19 logits. Shared memory holds a bit for each of
// them, which on sm_75 has room for 325,000.
void sample(const Context& ctx, Tensor logits, const SampleState& state,
            SampleKind kind = SampleKind::any, int team = 0);
// Whether this device and build can put `team` blocks on a row of that many logits.
bool sample_team_fits(std::int64_t vocab, int team);

// Rows, their state and the rings.
class Sampler {
  public:
    // `most_recent`: the longest window of a row; 0: there is no penalty.
    explicit Sampler(const Stream& stream, int max_rows, int most_recent, int ring_slots = 64);

    // From the next launch on, row `row` draws with these parameters; `position` is the index of
    // the token it draws next, `recent` the tokens before it; of these and the tokens it draws, the
    // last `window` count. Uploaded on the stream; tokens only if the penalty is not 1. Throws what
    // ops::sample() throws for parameters out of range.
    void set_row(int row, const ops::SampleParams& params, std::int64_t position,
                 std::span<const std::int32_t> recent, int window, Ledger* ledger);
    void clear_row(int row, Ledger* ledger);  // the row is skipped
    // From the next launch on, row `to` draws what row `from` would have drawn; `from` is
    // unchanged. On the stream, without data from the host. (A kernel may do the same; kind() then
    // still reports what was set.)
    void copy_row(int to, int from);

    // Launches a draw for rows of the state, from `first` on: logits f32 [rows, vocab]. May be
    // captured; then call replayed() after every launch of the graph.
    void sample(const Context& ctx, Tensor logits, int first = 0);
    void replayed(int rows, Ledger* ledger, int first = 0);
    // The kernel that sample() launches for such rows: greedy if every set row is greedy. A
    // captured launch keeps its kernel: capture again if this changes.
    SampleKind kind(int first, int rows) const;

    // Draws launched for the row so far: the last one has the number steps(row) - 1.
    std::uint64_t steps(int row) const { return steps_[static_cast<std::size_t>(row)]; }
    struct Result {
        ops::Sampled sampled;
        std::uint32_t flags = 0;  // SampleFlag
    };
    // The draw of that number, once it is made. The ring keeps the last ring_slots.
    std::optional<Result> poll(int row, std::uint64_t step) const;
    // Waits for the draw; throws what ops::sample() throws for such logits, and Error (device)
    // where the device has failed.
    ops::Sampled wait(int row, std::uint64_t step) const;

    const SampleState& state() const { return state_; }
    SampleState state_from(int first) const;                    // of the rows from `first` on
    std::int32_t* next_ids() const { return state_.next_ids; }  // [max_rows] on the device
    int max_rows() const { return static_cast<int>(steps_.size()); }
    int most_recent() const { return state_.most_recent; }
    static std::size_t device_bytes(int max_rows, int most_recent);

  private:
    std::int32_t* ring_of(int row) const;
    void upload(int row, Ledger* ledger);
    void upload_recent(int row, std::span<const std::int32_t> tokens, Ledger* ledger);

    const Stream& stream_;
    DeviceArena memory_;
    PinnedBuffer ring_;
    PinnedBuffer staging_;         // rows being uploaded, a ring of slots
    PinnedBuffer tokens_;          // recent tokens being uploaded, one piece after the other
    std::size_t tokens_used_ = 0;  // since the buffer was last empty
    Event tokens_read_;            // the last piece has been uploaded
    SampleState state_;
    std::vector<std::uint64_t> steps_;
    std::vector<SampleRow> set_;   // as the host set them: the kernel advances the device's copy
    std::vector<Event> uploaded_;  // for each slot of staging_
    std::size_t place_ = 0;        // slot of the next upload
};

// Throws what ops::sample() throws for a row with such flags.
void check_sample_flags(std::uint32_t flags);

}  // namespace mr::cuda
