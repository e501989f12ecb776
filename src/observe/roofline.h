// Where the time of a phase went, stage by stage, compared with the machine's ceilings.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ledger.h"
#include "observe/recorder.h"

namespace mr::observe {

// The best rates measured with nothing else running. 0: not measured.
struct Ceilings {
    double read = 0;                    // bytes per second from memory
    double copy = 0;                    // bytes per second read and written by a copy within memory
    double to_device = 0, to_host = 0;  // bytes per second between pinned host memory and device
    double matrix = 0;                  // FLOP/s of matrix products, of a GPU
    // FLOP/s of a CPU's threads together (compute_peak.h). Operations take f32 and int8 alone.
    double f32 = 0, int8 = 0, bf16 = 0;
};

enum class Roof { none, memory, matrix, f32, int8 };
const char* roof_name(Roof roof);

// A stage's calls added up, over layers and steps.
struct StageSum {
    std::string name;
    std::uint64_t calls = 0;
    double seconds = 0;
    std::uint64_t bytes = 0;  // read and written, by the contracts of the ops
    std::uint64_t flops = 0;
    std::uint64_t int8_flops = 0;  // of them: products of 8-bit integers, on a CPU

    double share = 0;  // of the phase's time
    // The roof that is nearer: whether the bytes or the FLOPs take longer at the ceilings; and that
    // time over the measured one. Above 1: the bytes came out of a cache. Of all stages: the sum of
    // their times, and the roof that most of it belongs to.
    Roof roof = Roof::none;
    double of_ceiling = 0;

    double bytes_per_second() const { return seconds > 0 ? double(bytes) / seconds : 0; }
    double flops_per_second() const { return seconds > 0 ? double(flops) / seconds : 0; }
    double flops_per_byte() const { return bytes > 0 ? double(flops) / double(bytes) : 0; }
};

struct Roofline {
    std::string phase;
    std::int64_t steps = 0, tokens = 0;
    // For diffusion passes: tokens they completed. `steps` counts passes and `tokens` rows then.
    std::optional<std::int64_t> made;
    double seconds = 0;            // of all steps
    std::vector<StageSum> stages;  // in the order in which they first ran
    StageSum all;                  // the sum of `stages`
    double gaps = 0;               // seconds within steps in which no stage ran
    double outside = 0;            // seconds of steps before the first stage and after the last
    double to_device_per_token = 0, to_host_per_token = 0;  // bytes, stamps excluded
    double stamps_per_token = 0;  // bytes from the device needed only for this table
    Ceilings ceilings;

    double made_per_pass() const;
};

// The least time that work takes at the ceilings, 0 where they were not measured, and the roof that
// it follows from.
struct LeastTime {
    double seconds = 0;
    Roof roof = Roof::none;
};
LeastTime least_time(const OpRecord& work, const Ceilings& ceilings);
// Of operations one after the other: the sum, and the roof that most of it belongs to.
LeastTime least_time(std::span<const OpRecord> work, const Ceilings& ceilings);

// "3 steps, 3 tokens", or "11 passes, 56 rows, 16 tokens (1.45 per pass)".
std::string counts_of(const Roofline& roofline);

// Adds up the steps of a phase as they end, in constant memory.
class RooflineSums {
  public:
    explicit RooflineSums(std::string phase);
    void add(const Step& step);  // ignored if of another phase
    Roofline under(const Ceilings& ceilings) const;

  private:
    Roofline sums_;  // without the fields derived from ceilings and token counts
    double to_device_ = 0, to_host_ = 0, stamps_ = 0;
};

// The roofline of the steps of `phase`.
Roofline make_roofline(std::span<const Step> steps, std::string_view phase,
                       const Ceilings& ceilings);

// A table for people: one line per stage; times and bytes per step.
std::string roofline_table(const Roofline& roofline);
// {"phase", "steps", "tokens", "seconds", "stages": [{"stage", "calls", "seconds", "share",
//  "bytes", "flops", "int8_flops", "gb_s", "gflop_s", "flops_per_byte", "roof",
//  "percent_of_ceiling"}, ...], "all": {...}, "gap_seconds", "outside_seconds",
//  "host_to_device_bytes_per_token", "device_to_host_bytes_per_token", "stamp_bytes_per_token",
//  "ceilings": {...}}. Passes that fill in tokens have "rows", "decode_tokens", "passes" and
// "tokens_per_pass" besides; their "steps" are the passes, and their "tokens" the rows.
nlohmann::ordered_json roofline_json(const Roofline& roofline);
// {"read_gb_s", "copy_gb_s", "to_device_gb_s", "to_host_gb_s", "matrix_gflop_s", "f32_gflop_s",
//  "int8_gflop_s", "bf16_gflop_s"}: those measured
nlohmann::ordered_json ceilings_json(const Ceilings& ceilings);

}  // namespace mr::observe
