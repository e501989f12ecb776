// The account of a run: for every operation how often it ran, how long, and how many bytes and
// FLOPs it needed by its contract; and every host-device copy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace mr {

enum class OpKind : std::uint8_t {
    embedding,
    linear,
    norm,
    rope,
    kv_write,
    attention,
    activation,
    add,
    lm_head,
    loss,
    sample,
    check,
    optimizer,
    kCount,
};
const char* op_name(OpKind kind);

struct OpRecord {
    std::uint64_t calls = 0;
    std::uint64_t bytes_read = 0;  // from memory, each operand counted once
    std::uint64_t bytes_written = 0;
    std::uint64_t flops = 0;
    double seconds = 0;
    std::uint64_t int8_flops = 0;  // of `flops`: products of 8-bit integers, on a CPU

    std::uint64_t bytes() const { return bytes_read + bytes_written; }
    OpRecord& operator+=(const OpRecord& other);
    OpRecord operator-(const OpRecord& earlier) const;
};

struct CopyRecord {
    std::uint64_t calls = 0;
    std::uint64_t bytes = 0;
    double seconds = 0;  // of the timed copies: Ledger::time_copies()

    CopyRecord& operator+=(const CopyRecord& other);
    CopyRecord operator-(const CopyRecord& earlier) const;
};

// A moment of the steady clock. <chrono> is avoided: every file includes this header, and <chrono>
// would add a second to each compilation, two to a kernel's.
struct Moment {
    std::int64_t nanoseconds = 0;

    static Moment now();
    double seconds_since(Moment earlier) const {
        return static_cast<double>(nanoseconds - earlier.nanoseconds) * 1e-9;
    }
};

// One operation as it happened: a kernel of a step on the device, an op on the CPU.
struct Stage {
    OpKind kind;
    const char* name;  // "qkv", "attention", ... a literal
    int layer;         // -1: outside of the layers
    OpRecord work;     // bytes and FLOPs by its contract; seconds if timed
    double begin = 0;  // seconds after the start of its log, or after its step's first stage
};

// Every operation in its order, for reports that need more than sums. Filled only while a ledger
// has it in watch().
struct StageLog {
    Moment start = Moment::now();
    std::vector<Stage> stages;
};

class Ledger {
  public:
    static constexpr std::size_t kOps = static_cast<std::size_t>(OpKind::kCount);

    void add(OpKind kind, const OpRecord& record) { ops_[index(kind)] += record; }
    // Adds another ledger, for example the one filled while a replayed graph was captured.
    void add(const Ledger& other);
    // From now on every LedgerEntry also goes into `log`, until watch(nullptr).
    void watch(StageLog* log) { log_ = log; }
    // at() sets the layer of the next operations, and the name of the very next one; without a name
    // an operation has that of its kind.
    void at(int layer) { layer_ = layer; }
    void at(int layer, const char* name) {
        layer_ = layer;
        name_ = name;
    }
    void add_timed(OpKind kind, const OpRecord& record, Moment start) {
        add(kind, record);
        const char* name = std::exchange(name_, nullptr);
        if (log_) log_stage(kind, name, record, start);
    }
    void add_host_to_device(std::uint64_t bytes, double seconds = 0) {
        to_device_ += {1, bytes, seconds};
    }
    void add_device_to_host(std::uint64_t bytes, double seconds = 0) {
        to_host_ += {1, bytes, seconds};
    }
    // From now on every copy is timed alone: its stream is synchronized before and after it.
    void time_copies(bool on) { times_copies_ = on; }
    bool times_copies() const { return times_copies_; }

    const OpRecord& op(OpKind kind) const { return ops_[index(kind)]; }
    const CopyRecord& host_to_device() const { return to_device_; }
    const CopyRecord& device_to_host() const { return to_host_; }
    OpRecord total() const;
    // The difference to `earlier`, a copy of this ledger taken before.
    Ledger since(const Ledger& earlier) const;

  private:
    static std::size_t index(OpKind kind) { return static_cast<std::size_t>(kind); }
    void log_stage(OpKind kind, const char* name, const OpRecord& record, Moment start);

    std::array<OpRecord, kOps> ops_{};
    CopyRecord to_device_, to_host_;
    StageLog* log_ = nullptr;
    const char* name_ = nullptr;
    int layer_ = -1;
    bool times_copies_ = false;
};

// Enters one operation in the ledger when it goes out of scope, with the time it took.
class LedgerEntry {
  public:
    LedgerEntry(Ledger* ledger, OpKind kind, std::uint64_t bytes_read, std::uint64_t bytes_written,
                std::uint64_t flops, std::uint64_t int8_flops = 0)
        : ledger_(ledger), kind_(kind) {
        if (!ledger_) return;
        record_ = {1, bytes_read, bytes_written, flops, 0, int8_flops};
        start_ = Moment::now();
    }
    ~LedgerEntry() {
        if (!ledger_) return;
        record_.seconds = Moment::now().seconds_since(start_);
        ledger_->add_timed(kind_, record_, start_);
    }
    LedgerEntry(const LedgerEntry&) = delete;
    LedgerEntry& operator=(const LedgerEntry&) = delete;

  private:
    Ledger* ledger_;
    OpKind kind_;
    OpRecord record_;
    Moment start_;
};

}  // namespace mr
