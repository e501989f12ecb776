#include "cli/bench/load.h"

#include <fmt/format.h>

#include <chrono>
#include <string>

#include "cli/json.h"
#include "cli/model_name.h"
#include "cli/terminal.h"
#include "core/arena.h"
#include "core/cuda/copy_speed.h"
#include "core/cuda/device.h"
#include "core/thread_pool.h"
#include "model/model.h"
#include "observe/memory.h"
#include "observe/units.h"

namespace mr::cli {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int device_load_bench(const SharedOptions& shared, const model::DeviceLoadOptions& how) {
    const cuda::DeviceInfo gpu = cuda::require_device();
    const double pinned = cuda::measure_copy_speed().to_device;
    ThreadPool pool(thread_count(shared));
    ProgressLine line;
    const auto start = std::chrono::steady_clock::now();
    model::LoadOptions wanted;
    wanted.tokenizer = tokenizer_source(shared.tokenizer);
    wanted.progress = line.callback();
    wanted.defer_random = true;
    wanted.ignore_keys = shared.ignore_keys;
    model::Model model = model::load_model(model_source(shared), wanted);
    const double open = seconds_since(start);

    Ledger ledger;
    const auto before_copy = std::chrono::steady_clock::now();
    const auto weights = model::load_to_device(model, pool, &ledger, line.callback(), how);
    const double to_device = seconds_since(before_copy);
    const auto before_release = std::chrono::steady_clock::now();
    model::release_host_weights(model);
    const double release = seconds_since(before_release);
    line.remove();

    const std::uint64_t sent = ledger.host_to_device().bytes;
    // Random matrices are made on the device, so there is no copy to compare.
    const bool made = model.deferred.has_value();
    const double rate = static_cast<double>(made ? weights->bytes : sent) / to_device;
    Json json = {{"bench", "load"},
                 {"model", model.source},
                 {"format", model.format},
                 {"parameters", model.spec.parameters()},
                 {"device", "cuda"},
                 {"gpu", gpu.name},
                 {"threads", pool.size()},
                 {"through", made              ? "device"
                             : how.through_map ? "map"
                                               : "file"},
                 {"load_s", open + to_device + release},
                 {"open_s", open},
                 {"to_device_s", to_device},
                 {"release_s", release},
                 {"weight_bytes", weights->bytes},
                 {"sent_bytes", sent},
                 {"gb_s", rate / 1e9},
                 {"pinned_gb_s", pinned / 1e9},
                 {"percent_of_pinned", made ? Json() : Json(100 * rate / pinned)},
                 {"peak_rss_bytes", observe::peak_resident_bytes()}};
    std::string text = fmt::format("load {}: {}, {}\n", one_line(model.source), gpu.name,
                                   observe::counted(pool.size(), "thread"));
    text += fmt::format("  {:.3f} s: open {:.3f}, to the device {:.3f}, give back {:.3f}\n",
                        open + to_device + release, open, to_device, release);
    text += fmt::format("  {} on the device, {} sent\n", format_bytes(weights->bytes),
                        format_bytes(sent));
    if (made) {
        text += fmt::format("  made there at {:.1f} GB/s\n", rate / 1e9);
    } else {
        text += fmt::format("  {:.1f} GB/s, {:.1f}% of the {:.1f} GB/s of pinned copies\n",
                            rate / 1e9, 100 * rate / pinned, pinned / 1e9);
    }
    text += fmt::format("  peak resident memory {}\n",
                        format_bytes(json["peak_rss_bytes"].get<std::uint64_t>()));
    out(shared.json ? json_text(json) : text);
    return 0;
}

}  // namespace mr::cli
