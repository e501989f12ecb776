// The sampler on the GPU: ops::sample() for many rows at once, logits and every parameter read from
// device memory. A drawn id goes straight to where the next step reads it; the host learns it from
// a ring in its own memory that the kernel writes, without a copy and without stopping anything.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/context.h"
#include "core/cuda/device.h"
#include "ops/sample/sample.h"

namespace mr::cuda {

// Most tokens the repetition penalty can look back on.
inline constexpr int kMostRecent = 64;

// What one row samples with, in device memory. The kernel moves `position` and the recent tokens on
// after every draw.
struct SampleRow {
    float temperature, top_p, min_p, repeat_penalty;
    std::int32_t top_k;
    std::int32_t active;  // 0: the row is passed over
    std::uint64_t seed;
    std::int64_t position;     // of the token that is drawn next: Philox's index
    std::int32_t window;       // how many recent tokens count, at most kMostRecent
    std::int32_t recent_used;  // how many there are
    std::int32_t recent_next;  // where the next one goes
    std::int32_t recent[kMostRecent];
    std::int32_t unused;
};

// Why a row has no token. The id is then 0, so that a step that was launched already reads a valid
// one.
enum SampleFlag : std::uint32_t {
    kSampleNan = 1,       // a logit is not a number
    kSampleNone = 2,      // no token is possible: all are -inf
    kSampleInactive = 4,  // the row is passed over
    kSampleKind = 8,      // the greedy kernel met a row that is not greedy
};

// What the host reads of one draw: 16 bytes. `tag` is written last: the low 28 bits of the step's
// number counted from 1, then 4 bits of flags.
struct SampleSlot {
    std::int32_t id;
    float probability;
    float confidence;
    std::uint32_t tag;
};

// Where a launch finds its rows and leaves its results; all addresses as the device sees them, any
// result may be null.
struct SampleState {
    SampleRow* rows = nullptr;       // [rows]
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
    greedy,  // every row has temperature 0: a kernel of its own
};

// Draws one token per row from logits f32 [rows, vocab], by the rules of ops::sample(). The bits of
// a row do not depend on the other rows, nor on `team`: how many blocks work on a row (a cluster of
// 2, 4, 8 or 16 on sm_90, 1 everywhere; 0: what is best). Weights are summed as integers, so that
// no order of adding changes anything; they agree with the CPU's to 2^-44 of the best one's.
void sample(const Context& ctx, Tensor logits, const SampleState& state,
            SampleKind kind = SampleKind::any, int team = 0);
// Whether this device and build can put `team` blocks on a row of that many logits.
bool sample_team_fits(std::int64_t vocab, int team);

// Rows, their state and the ring.
class Sampler {
  public:
    explicit Sampler(const Stream& stream, int max_rows, int ring_slots = 64);

    // From the next launch on, row `row` draws with these parameters; `position` is the index of
    // the token it draws next, `recent` the tokens before it (the last `window` count). Uploaded on
    // the stream. Throws what ops::sample() throws for parameters out of range.
    void set_row(int row, const ops::SampleParams& params, std::int64_t position,
                 std::span<const std::int32_t> recent, Ledger* ledger, int window = kMostRecent);
    void clear_row(int row, Ledger* ledger);  // the row is passed over
    // What is in row `from` on the device now lies in row `to`, and row `from` is passed over: the
    // caller's kernel has moved it.
    void move_row(int to, int from);

    // Launches a draw for rows of the state, from `first` on: logits f32 [rows, vocab]. May be
    // captured; then call replayed() after every launch of the graph.
    void sample(const Context& ctx, Tensor logits, int first = 0);
    void replayed(int rows, Ledger* ledger, int first = 0);
    // What sample() launches for such rows: greedy where every row that is set is greedy. A
    // captured launch keeps what it was captured with: capture again where this changes.
    SampleKind kind(int first, int rows) const;

    // Draws launched for the row so far: the last one has the number steps(row) - 1.
    std::uint64_t steps(int row) const { return steps_[static_cast<std::size_t>(row)]; }
    struct Result {
        ops::Sampled sampled;
        std::uint32_t flags = 0;  // SampleFlag
    };
    // The draw of that number, when it has been made. The ring keeps the last ring_slots.
    std::optional<Result> poll(int row, std::uint64_t step) const;
    // Waits for it; throws what ops::sample() throws for such logits, and Error (device) where the
    // device has failed.
    ops::Sampled wait(int row, std::uint64_t step) const;

    const SampleState& state() const { return state_; }
    std::int32_t* next_ids() const { return state_.next_ids; }  // [max_rows] on the device
    int max_rows() const { return static_cast<int>(steps_.size()); }
    static std::size_t device_bytes(int max_rows);

  private:
    void upload(int row, Ledger* ledger);

    const Stream& stream_;
    DeviceArena memory_;
    PinnedBuffer ring_, staging_;
    SampleState state_;
    std::vector<std::uint64_t> steps_;
    enum class Draws : std::uint8_t { nothing, greedy, any };
    std::vector<Draws> draws_;     // what each row does
    std::vector<Event> uploaded_;  // of each row's staging memory
};

// Throws what ops::sample() throws for a row with such flags.
void check_sample_flags(std::uint32_t flags);

}  // namespace mr::cuda
