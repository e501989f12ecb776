#include "cli/engine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "cli/terminal.h"
#include "core/error.h"
#include "core/mapped_file.h"

namespace mr::cli {

LoadedModel load(const SharedOptions& options) {
    check_device(options);
    const auto start = std::chrono::steady_clock::now();
    ProgressLine line;
    auto model = std::make_shared<model::Model>(
        model::load_model(model_source(options), {options.tokenizer, line.callback()}));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    return {std::move(model), seconds.count()};
}

model::EngineOptions engine_options(const SharedOptions& options) {
    model::EngineOptions out;
    out.threads = options.threads;
    out.context = options.ctx;
    out.kv_type = options.kv_dtype();
    return out;
}

std::string read_input(const std::string& path) {
    if (path != "-") return read_text_file(path);
    std::string text;
    char buffer[1 << 16];
    for (;;) {
        const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof buffer);
        if (count == 0) return text;
        if (count > 0) {
            text.append(buffer, static_cast<std::size_t>(count));
        } else if (InterruptGuard::pending()) {
            throw Interrupted{};
        } else if (errno != EINTR) {
            throw Error::input({.file = "standard input",
                                .problem = fmt::format("cannot read: {}", std::strerror(errno))});
        }
    }
}

}  // namespace mr::cli
