// Reports progress to Python, and checks for Ctrl-C.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>

#include "core/progress.h"

namespace mr::python {

// An exception of the callback, such as KeyboardInterrupt, ends the work. It is called about 20
// times per second at most. `callback`: None, or a function of what, done and total; must outlive
// the result.
inline Progress progress_of(const nanobind::object& callback) {
    using Clock = std::chrono::steady_clock;
    return [&callback, last = Clock::time_point{}](std::string_view what, std::uint64_t done,
                                                   std::uint64_t total) mutable {
        const Clock::time_point now = Clock::now();
        if (done < total && now - last < std::chrono::milliseconds(50)) return;
        last = now;
        const nanobind::gil_scoped_acquire locked;
        if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
        if (!callback.is_none()) callback(nanobind::str(what.data(), what.size()), done, total);
    };
}

}  // namespace mr::python
