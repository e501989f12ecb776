#include "cli/engine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>

#include "cli/model_name.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "core/mapped_file.h"
#include "core/thread_pool.h"
#include "model/cpu/repack.h"
#include "model/cuda/device_weights.h"
#include "observe/recorder.h"

namespace mr::cli {
namespace {

[[noreturn]] void throw_unreadable(const std::string& name) {
    throw Error::input(
        {.file = name, .problem = fmt::format("cannot be read: {}", std::strerror(errno))});
}

std::string read_all(int fd, const std::string& name) {
    refuse_endless(fd, name);
    constexpr std::size_t kMost = std::size_t{1} << 30;  // as for files: core/mapped_file.h
    std::string text;
    char buffer[1 << 16];
    for (;;) {
        const ssize_t count = ::read(fd, buffer, sizeof buffer);
        if (count == 0) return text;
        if (count > 0) {
            text.append(buffer, static_cast<std::size_t>(count));
        } else if (InterruptGuard::pending()) {
            throw Interrupted{};
        } else if (errno != EINTR) {
            throw_unreadable(name);
        }
        if (text.size() > kMost) {
            throw Error::input({.file = name, .problem = "is longer than 1 GiB"});
        }
    }
}

}  // namespace

void note_gpu_passed_over(const SharedOptions& options, bool cuda) {
    if (cuda || options.device != "auto") return;
    // No message where there is no GPU: none is expected.
    if (const std::string why = cuda::passed_over(); !why.empty()) {
        remark(fmt::format("computing on the CPU; the GPU is not used: {}", one_line(why)));
    }
}

LoadedModel load(const SharedOptions& options, const Wanted& wanted) {
    const observe::Span span(nullptr, "load");
    const auto start = std::chrono::steady_clock::now();
    const Disabled off = disabled(options);  // report a misspelt word before using the device
    const bool cuda = use_cuda(options);
    note_gpu_passed_over(options, cuda);
    ProgressLine line;
    line.begin("opening the model");
    LoadedModel loaded;
    const auto refuse_what_cannot_run = [&](const model::Model& planned) {
        loaded.engine = wanted(planned);
        model::require_engine(planned, loaded.engine);
    };
    auto model = std::make_shared<model::Model>(
        model::load_model(model_source(options), {.tokenizer = tokenizer_source(options.tokenizer),
                                                  .progress = line.callback(),
                                                  .planned = refuse_what_cannot_run,
                                                  .defer_random = cuda,
                                                  .ignore_keys = options.ignore_keys}));
    for (const std::string& said : model->notes) {
        line.remove();
        remark(one_line(said));
    }
    if (options.ctx > model->spec.context) {
        line.remove();
        remark(
            fmt::format("--ctx {} is more than the {} positions that the model was trained for; "
                        "what it writes beyond them may be worthless",
                        options.ctx, model->spec.context));
    }
    if (cuda) {
        ThreadPool pool(thread_count(options));
        loaded.weights = model::load_to_device(*model, pool, &loaded.ledger, line.callback());
        model::release_host_weights(*model);
    } else if (!off.repack) {
        model::repack_weights(*model, thread_count(options), line.callback());
    }
    loaded.model = std::move(model);
    loaded.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return loaded;
}

model::EngineOptions engine_switches(const SharedOptions& options) {
    const Disabled off = disabled(options);
    model::EngineOptions out;
    out.fuse = !off.fuse;
    out.add_in_product = !off.add_in_product;
    out.add_in_norm = !off.add_in_norm;
    out.norms_together = !off.norms_together;
    out.graph = !off.graph;
    out.dependent_launch = !off.dependent_launch;
    out.batch_products = !off.batch_products;
    out.resident_attention = !off.resident_attention;
    out.persistent = !off.persistent;
    out.loop = !off.loop;
    out.head_records = !off.head_records;
    return out;
}

model::EngineOptions engine_options(const SharedOptions& options) {
    model::EngineOptions out = engine_switches(options);
    out.cuda = use_cuda(options);
    out.threads = options.threads;
    out.context = options.ctx;
    out.pool = options.pool;
    out.kv_type = options.kv_dtype();
    if (out.kv_type == DType::bf16 && !out.cuda) {
        throw Error::usage({.field = "--kv-type bf16",
                            .problem = "is only supported on a GPU",
                            .remedy = "use f32 or f16"});
    }
    if (out.cuda) out.max_batch = model::kDeviceBatch;
    out.check_nan = options.check_nan;
    return out;
}

std::unique_ptr<model::Engine> make_engine(const LoadedModel& loaded) {
    ProgressLine line;
    line.begin("preparing the engine");
    return model::make_engine(loaded.model, loaded.engine, loaded.weights);
}

model::EngineOptions options_for(const SharedOptions& options, const model::Model& model,
                                 std::size_t prompt_tokens, decode::GenerateOptions& generate) {
    const std::int64_t wanted =
        generate.max_tokens < 0 ? std::numeric_limits<int>::max() - 1 : generate.max_tokens;
    model::EngineOptions out = engine_options(options);
    if (out.context == 0) {
        out.context = std::min<std::int64_t>(model.spec.context,
                                             static_cast<std::int64_t>(prompt_tokens) + wanted + 1);
    }
    // One more than fits, so that the stop reason tells which limit was reached.
    generate.max_tokens =
        static_cast<int>(std::min(wanted, std::max<std::int64_t>(out.context, 1) + 1));
    return out;
}

void refuse_endless(int fd, const std::string& name) {
    struct stat status {
    }, null{};
    if (::fstat(fd, &status) != 0 || ::isatty(fd) != 0) return;
    if (!S_ISCHR(status.st_mode) && !S_ISBLK(status.st_mode)) return;
    if (::stat("/dev/null", &null) == 0 && null.st_rdev == status.st_rdev) return;
    throw Error::input(
        {.file = name, .problem = "is a device, not a text", .remedy = "give a file or a pipe"});
}

void show_prompt(ProgressLine& line, decode::GenerateOptions& generate) {
    generate.on_reading = [&line](std::int64_t done, std::int64_t all) {
        if (done >= all) return line.remove();
        line.draw(kReadingPrompt, static_cast<std::uint64_t>(done),
                  static_cast<std::uint64_t>(all));
    };
}

std::string read_input(const std::string& path) {
    struct stat status {};
    const bool regular = path != "-" && (::stat(path.c_str(), &status) != 0 ||
                                         S_ISREG(status.st_mode) || S_ISDIR(status.st_mode));
    if (regular) return read_text_file(path);  // or its error
    if (path == "-") return read_all(STDIN_FILENO, "standard input");
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);     // a FIFO: <(command), mkfifo
    if (fd < 0 && InterruptGuard::pending()) throw Interrupted{};  // while waiting for a writer
    if (fd < 0) throw_unreadable(path);
    try {
        std::string text = read_all(fd, path);
        ::close(fd);
        return text;
    } catch (...) {
        ::close(fd);
        throw;
    }
}

}  // namespace mr::cli
