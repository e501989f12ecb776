#include "calls.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <string>
#include <vector>

#include "cli/caller.h"
#include "progress.h"
#include "train/metrics.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mr::python {
namespace {

// Texts of a model in training, and file names, may have any bytes.
nb::bytes bytes_of(const std::string& text) { return nb::bytes(text.data(), text.size()); }

// The events of a training run, passed on as tell(kind, number, text). Ctrl-C is checked between
// steps: the run then saves and ends, and `interrupt` holds the exception to throw afterwards.
train::TrainEvents events_of(const nb::object& tell, std::exception_ptr& interrupt) {
    train::TrainEvents events;
    events.step = [&tell](const train::TrainEvents::Step& step) {
        const std::string line = train::metrics_line(step.metrics);
        const nb::gil_scoped_acquire locked;
        tell("step", step.steps, bytes_of(line));
    };
    events.sample = [&tell](std::int64_t step, const std::string& text) {
        const nb::gil_scoped_acquire locked;
        tell("sample", step, bytes_of(text));
    };
    events.note = [&tell](const std::string& line) {
        const nb::gil_scoped_acquire locked;
        tell("note", 0, bytes_of(line));
    };
    events.stop = [&interrupt] {
        if (interrupt) return true;
        const nb::gil_scoped_acquire locked;
        if (PyErr_CheckSignals() != 0) interrupt = std::make_exception_ptr(nb::python_error());
        return static_cast<bool>(interrupt);
    };
    return events;
}

// Returns the object that --json prints.
nb::bytes call(const std::vector<std::string>& words, const std::string& line,
               const nb::object& progress, const nb::object& tell) {
    std::exception_ptr interrupt;
    cli::Caller caller;
    caller.line = line;
    caller.progress = progress_of(progress);
    caller.training = events_of(tell, interrupt);
    {
        const nb::gil_scoped_release unlocked;
        cli::call(words, caller);
    }
    if (interrupt) std::rethrow_exception(interrupt);
    return bytes_of(caller.result);
}

// For each option its long name, the placeholder of its value ("": a flag), and its description.
nb::list options(const std::vector<std::string>& command) {
    nb::list out;
    for (const cli::OptionOutline& option : cli::options_of(command)) {
        const std::string name = option.longs.empty() ? "" : option.longs[0];
        out.append(nb::make_tuple(name, option.value, option.about));
    }
    return out;
}

}  // namespace

void add_calls(nb::module_& m) {
    m.def("call", &call, "words"_a, "line"_a, "progress"_a.none(), "tell"_a);
    m.def("command_options", &options, "command"_a);
}

}  // namespace mr::python
