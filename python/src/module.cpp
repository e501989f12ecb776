// millrace._core: the engine, for the Python code of the package. No call waits with the GIL held,
// and the engine's thread never takes it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <string>
#include <utility>
#include <vector>

#include "calls.h"
#include "cli/commands.h"
#include "core/error.h"
#include "millrace/millrace.h"
#include "opened.h"
#include "ops_module.h"
#include "progress.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mr::python {
namespace {

using Ids = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A ticket with the objects that must live until it has ended. A dropped ticket is cancelled and
// waited for: the worker may be writing into the caller's arrays.
class Pending {
  public:
    Pending(const Opened& opened, TicketPtr ticket, nb::object keep = nb::none())
        : opened_(opened), ticket_(std::move(ticket)), keep_(std::move(keep)) {}
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;
    ~Pending() {
        if (keep_.is_none()) {
            ticket_->cancel();
        } else {
            stop();
        }
    }

    void stop() {
        ticket_->cancel();
        if (!opened_.here()) return;  // in a fork the worker's thread is missing
        const nb::gil_scoped_release unlocked;
        while (!ticket_->wait(1, false)) {
        }
    }
    bool wait(double seconds, bool text) {
        const nb::gil_scoped_release unlocked;
        return ticket_->wait(seconds, text);
    }
    Ticket& ticket() { return *ticket_; }

  private:
    const Opened& opened_;
    TicketPtr ticket_;
    nb::object keep_;
};

std::string_view view(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }
nb::bytes bytes_of(std::string_view text) { return nb::bytes(text.data(), text.size()); }

// Results as plain values; Python code decides on their presentation.
nb::dict dict_of(const decode::Generated& made) {
    nb::dict out;
    out["text"] = bytes_of(made.text);
    out["ids"] = made.ids;
    out["confidence"] = made.confidence;
    out["stop_reason"] = decode::stop_reason_name(made.reason);
    out["prompt_tokens"] = made.prompt_tokens;
    out["tokens_per_second"] = made.decode.tokens_per_second();
    out["bytes_per_second"] = made.decode.bytes_per_second();
    out["passes"] = made.passes;
    nb::list logprobs;
    for (const decode::DrawnLogprobs& drawn : made.logprobs) {
        nb::list top;
        for (const decode::TokenLogprob& other : drawn.top) {
            top.append(nb::make_tuple(other.id, other.logprob));
        }
        logprobs.append(nb::make_tuple(drawn.logprob, top));
    }
    out["logprobs"] = logprobs;
    return out;
}

nb::dict dict_of(const decode::DiffusionEvalResult& result, bool fills, bool bound) {
    nb::dict out;
    const decode::EvalResult& exact = result.exact;
    out["documents"] = exact.documents;
    out["tokens"] = exact.tokens;
    out["bytes"] = exact.bytes;
    out["nll"] = exact.nll;
    out["perplexity"] = exact.perplexity();
    out["bits_per_byte"] = exact.bits_per_byte();
    out["cut"] = exact.cut;
    out["seconds"] = exact.phase.seconds;
    out["passes"] = fills ? nb::object(nb::int_(result.passes)) : nb::none();
    out["bound_nll"] = fills && bound ? nb::object(nb::float_(result.bound_nll)) : nb::none();
    return out;
}

nb::list records_of(const decode::Profiled& profile) {
    nb::list out;
    for (const observe::Roofline& phase : profile.phases) {
        for (const observe::StageSum& stage : phase.stages) {
            nb::dict row;
            row["phase"] = phase.phase;
            row["stage"] = stage.name;
            row["calls"] = stage.calls;
            row["seconds"] = stage.seconds;
            row["share"] = stage.share;
            row["bytes"] = stage.bytes;
            row["flops"] = stage.flops;
            row["gb_s"] = stage.bytes_per_second() / 1e9;
            row["gflop_s"] = stage.flops_per_second() / 1e9;
            row["roof"] = observe::roof_name(stage.roof);
            row["of_ceiling"] = stage.of_ceiling;
            out.append(row);
        }
    }
    return out;
}

nb::dict info_of(const Opened& opened) {
    const model::ModelSpec& spec = opened.model().spec;
    nb::dict out;
    out["source"] = opened.model().source;
    out["format"] = opened.model().format;
    out["family"] = spec.family;
    out["parameters"] = spec.parameters();
    out["layers"] = spec.layers;
    out["dim"] = spec.dim;
    out["vocab"] = spec.vocab;
    out["context"] = opened.engine_options().context;
    out["device"] = opened.engine_options().cuda ? "cuda" : "cpu";
    out["threads"] = opened.engine_options().threads;
    out["max_sequences"] = opened.engine_options().max_sequences;
    out["fills_in"] = spec.diffusion.has_value();
    out["notes"] = opened.model().notes;
    out["load_seconds"] = opened.load_seconds();
    return out;
}

// ---- errors -------------------------------------------------------------------------------------

PyObject* new_error(nb::module_& m, const char* name, const char* doc, PyObject* base) {
    const std::string full = std::string("millrace.") + name;
    PyObject* const made = PyErr_NewExceptionWithDoc(full.c_str(), doc, base, nullptr);
    if (made == nullptr) throw nb::python_error();
    m.attr(name) = nb::handle(made);
    return made;  // kept until the process ends
}

struct Errors {
    PyObject *any = nullptr, *input = nullptr, *usage = nullptr, *device = nullptr;
} errors;

void add_errors(nb::module_& m) {
    errors.any = new_error(m, "Error", "What went wrong, in one line.", PyExc_Exception);
    errors.input =
        new_error(m, "InputError", "A file, a prompt or a model cannot be used.", errors.any);
    errors.usage =
        new_error(m, "UsageError", "An argument is wrong, or does not apply here.", errors.any);
    errors.device =
        new_error(m, "DeviceError", "There is no such device, or not enough memory.", errors.any);
    nb::register_exception_translator(
        [](const std::exception_ptr& error, void*) {
            try {
                std::rethrow_exception(error);
            } catch (const Error& e) {
                PyErr_SetString(e.kind() == ErrorKind::input   ? errors.input
                                : e.kind() == ErrorKind::usage ? errors.usage
                                                               : errors.device,
                                e.what());
            } catch (const ContractError& e) {
                PyErr_SetString(
                    errors.any,
                    (std::string("internal error, please report it: ") + e.what()).c_str());
            } catch (const std::bad_alloc&) {
                PyErr_SetString(errors.device,
                                "out of memory; use a smaller model, ctx or weight type");
            }
        },
        nullptr);
}

// ---- classes ------------------------------------------------------------------------------------

void add_options(nb::module_& m) {
    nb::class_<Options>(m, "Options")
        .def(nb::init<>())
        .def_rw("max_tokens", &Options::max_tokens)
        .def_rw("temperature", &Options::temperature)
        .def_rw("top_k", &Options::top_k)
        .def_rw("top_p", &Options::top_p)
        .def_rw("min_p", &Options::min_p)
        .def_rw("repeat_penalty", &Options::repeat_penalty)
        .def_rw("repeat_window", &Options::repeat_window)
        .def_rw("seed", &Options::seed)
        .def_rw("stop", &Options::stop)
        .def_rw("stop_ids", &Options::stop_ids)
        .def_rw("min_tokens", &Options::min_tokens)
        .def_rw("ignore_eos", &Options::ignore_eos)
        .def_rw("logprobs", &Options::logprobs)
        .def_rw("block", &Options::block)
        .def_rw("steps", &Options::steps)
        .def_rw("remask", &Options::remask)
        .def_rw("confidence", &Options::confidence)
        .def_rw("threshold", &Options::threshold)
        .def_rw("entropy_bound", &Options::entropy_bound)
        .def_rw("prefix_cache", &Options::prefix_cache)
        .def_rw("use_gpu_sampler", &Options::use_gpu_sampler);
}

void add_pending(nb::module_& m) {
    nb::class_<Pending>(m, "Pending")
        .def("wait", &Pending::wait, "seconds"_a, "text"_a = false)
        .def("text", [](Pending& p) { return bytes_of(p.ticket().take_text()); })
        .def("ended", [](Pending& p) { return p.ticket().ended(); })
        .def("cancel", [](Pending& p) { p.ticket().cancel(); })
        .def("stop", &Pending::stop)
        .def("check", [](Pending& p) { p.ticket().check(); })
        .def("made", [](Pending& p) {
            p.ticket().check();
            return dict_of(p.ticket().made);
        });
    nb::class_<decode::Profiled>(m, "Profile")
        .def(nb::init<>())
        .def("table", &decode::Profiled::table)
        .def("save_html", &decode::Profiled::save_html, "path"_a)
        .def("save_trace", &decode::Profiled::save_trace, "path"_a)
        .def("records", &records_of)
        .def("made", [](const decode::Profiled& p) { return dict_of(p.made); })
        .def_ro("summary", &decode::Profiled::summary);
    nb::class_<decode::DiffusionEvalResult>(m, "EvalResult")
        .def(nb::init<>())
        .def("values", [](const decode::DiffusionEvalResult& r, bool fills, bool bound) {
            return dict_of(r, fills, bound);
        });
}

std::unique_ptr<Opened> open(const std::string& model, const std::string& device, int threads,
                             std::int64_t ctx, std::int64_t pool, const std::string& kv_type,
                             const std::string& tokenizer, std::vector<std::string> ignore_keys,
                             bool check_nan, int max_sequences, const nb::object& progress) {
    cli::SharedOptions shared;
    shared.model = model;
    shared.device = device;
    shared.threads = threads;
    shared.ctx = ctx;
    shared.pool = pool;
    shared.kv_type = kv_type;
    shared.tokenizer = tokenizer;
    shared.ignore_keys = std::move(ignore_keys);
    shared.check_nan = check_nan;
    const nb::gil_scoped_release unlocked;
    return std::make_unique<Opened>(shared, max_sequences, progress_of(progress));
}

void close(Opened& opened) {
    WorkerPtr worker = opened.close();
    if (!worker) return;  // closed before, or by another thread
    const bool here = worker->here();
    const nb::gil_scoped_release unlocked;
    worker.reset();
    if (here) opened.release();  // in a fork the parent's threads may have stopped anywhere
}

std::unique_ptr<Pending> embed(Opened& opened, std::vector<std::vector<std::int32_t>> texts,
                               bool last, Rows out) {
    return std::make_unique<Pending>(opened, opened.embed(std::move(texts), last, out.data()),
                                     nb::cast(out));
}

std::unique_ptr<Pending> logits(Opened& opened, Ids ids, Rows out) {
    return std::make_unique<Pending>(opened, opened.logits({ids.data(), ids.size()}, out.data()),
                                     nb::make_tuple(nb::cast(ids), nb::cast(out)));
}

void add_model(nb::module_& m) {
    nb::class_<Opened>(m, "Opened")
        .def("info", &info_of)
        .def("close", &close)
        .def("is_open", &Opened::open)
        .def("encode", [](const Opened& o, const nb::bytes& text,
                          bool special) { return o.encode(view(text), special); })
        .def("encode_prompt",
             [](const Opened& o, const nb::bytes& text) { return o.encode_prompt(view(text)); })
        .def("decode", [](const Opened& o,
                          const std::vector<std::int32_t>& ids) { return bytes_of(o.decode(ids)); })
        .def("chat_prompt",
             [](const Opened& o, const nb::list& messages, const std::string& template_file,
                std::vector<std::string> arguments, bool parse_special) {
                 std::vector<text::ChatMessage> all;
                 for (const nb::handle message : messages) {
                     const auto pair = nb::cast<nb::tuple>(message);
                     all.push_back({std::string(view(nb::cast<nb::bytes>(pair[0]))),
                                    std::string(view(nb::cast<nb::bytes>(pair[1])))});
                 }
                 const Opened::ChatPrompt made =
                     o.chat_prompt(all, {.template_file = template_file,
                                         .arguments = std::move(arguments),
                                         .parse_special = parse_special});
                 nb::list stops;
                 for (const std::string& stop : made.stops) stops.append(bytes_of(stop));
                 return nb::make_tuple(made.ids, stops);
             })
        .def(
            "generate",
            [](Opened& o, std::vector<std::int32_t> prompt, const Options& options, bool streams) {
                return std::make_unique<Pending>(o,
                                                 o.generate(std::move(prompt), options, streams));
            },
            nb::keep_alive<0, 1>())
        // No conversion: an array is read and written in place.
        .def("logits", &logits, "ids"_a.noconvert(), "out"_a.noconvert(), nb::keep_alive<0, 1>())
        .def("embed", &embed, "texts"_a, "last"_a, "out"_a.noconvert(), nb::keep_alive<0, 1>())
        .def(
            "eval",
            [](Opened& o, const nb::bytes& text, const nb::bytes& split, int limit, bool ends,
               std::optional<int> bound, const Options& options,
               std::shared_ptr<decode::DiffusionEvalResult> result) {
                return std::make_unique<Pending>(
                    o, o.eval(std::string(view(text)),
                              {std::string(view(split)), limit, ends, bound, options},
                              std::move(result)));
            },
            nb::keep_alive<0, 1>())
        .def(
            "profile",
            [](Opened& o, const nb::bytes& prompt, const Options& options,
               std::shared_ptr<decode::Profiled> result) {
                return std::make_unique<Pending>(
                    o, o.profile(std::string(view(prompt)), options, std::move(result)));
            },
            nb::keep_alive<0, 1>());
    m.def("open", &open, "model"_a, "device"_a, "threads"_a, "ctx"_a, "pool"_a, "kv_type"_a,
          "tokenizer"_a, "ignore_keys"_a, "check_nan"_a, "max_sequences"_a, "progress"_a.none());
}

int run_program(const std::vector<std::string>& words) {
    std::vector<std::string> copies = words;
    std::vector<char*> arguments;
    for (std::string& word : copies) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    return cli::program(static_cast<int>(words.size()), arguments.data());
}

}  // namespace
}  // namespace mr::python

NB_MODULE(_core, m) {
    nb::set_leak_warnings(false);  // models left at exit end with the process
    mr::python::add_errors(m);
    mr::python::add_options(m);
    mr::python::add_pending(m);
    mr::python::add_model(m);
    mr::python::add_ops(m);
    mr::python::add_calls(m);
    // The command line; returns the exit code. For a process that does nothing else.
    m.def("program", &mr::python::run_program, "words"_a);
    m.attr("version") = millrace::version();
}
