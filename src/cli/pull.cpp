// millrace pull: checks the command line and becomes millrace-pull, the program that downloads. It
// is apart because this one makes no connection of its own, and links nothing that could.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "core/error.h"
#include "hub/reference.h"

namespace mr::cli {
namespace {

struct PullOptions {
    std::string name, hub, revision, cache, ca;
    bool quiet = false, verify = false;
    int retries = 5;
    double retry_wait = 1;
};

// Beside this program, wherever it was installed.
std::string pull_program() {
    namespace fs = std::filesystem;
    std::error_code code;
    const fs::path own = fs::read_symlink("/proc/self/exe", code);
    const fs::path program = own.parent_path() / "millrace-pull";
    if (own.empty() || !fs::exists(program, code)) {
        throw Error::input(
            {.file = program.string(),
             .problem = "is not there: this build of Millrace downloads nothing",
             .remedy = "install libcurl4-openssl-dev and libssl-dev (Debian's names) and build "
                       "again, or download the model otherwise and give its file or folder"});
    }
    return program.string();
}

// A name, or an address on the hub, which may name the revision, too.
hub::Address read_name(const PullOptions& options) {
    if (auto name = hub::read_reference(options.name)) return {std::move(*name), {}};
    if (auto address = hub::read_address(options.name, options.hub)) return std::move(*address);
    const bool other = options.name.find("://") != std::string::npos;
    throw Error::usage({.field = "NAME",
                        .value = options.name,
                        .problem = "is not OWNER/NAME or OWNER/NAME:TYPE",
                        .remedy = other ? "for another hub: --hub https://HOST OWNER/NAME"
                                        : "as in Qwen/Qwen3-0.6B or Qwen/Qwen3-0.6B-GGUF:Q8_0"});
}

int pull(const PullOptions& options) {
    const auto [model, named] = read_name(options);
    const std::string revision = options.revision.empty() ? named : options.revision;
    std::vector<std::string> words = {pull_program(), "--retries",
                                      fmt::format("{}", options.retries), "--retry-wait",
                                      fmt::format("{}", options.retry_wait)};
    const std::pair<const char*, const std::string*> given[] = {{"--hub", &options.hub},
                                                                {"--revision", &revision},
                                                                {"--cache", &options.cache},
                                                                {"--ca", &options.ca}};
    for (const auto& [option, value] : given) {
        if (value->empty()) continue;
        words.emplace_back(option);
        words.push_back(*value);
    }
    if (options.quiet) words.emplace_back("--quiet");
    if (options.verify) words.emplace_back("--verify");
    words.push_back(model.text());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    ::execv(arguments[0], arguments.data());
    throw Error::input(
        {.file = words[0], .problem = fmt::format("cannot be started: {}", std::strerror(errno))});
}

}  // namespace

void add_pull(const Command& app, Action& action) {
    auto options = std::make_shared<PullOptions>();
    const Command command =
        app.add_subcommand("pull", "Download a model, for the other commands to use by its name");
    command
        .add_option("name", options->name,
                    "OWNER/NAME, OWNER/NAME:TYPE (Q8_0) or OWNER/NAME:FILE, as on huggingface.co, "
                    "or its address there")
        .required();
    command
        .add_option("--hub", options->hub,
                    fmt::format("Address of the hub; default: {}", hub::kUsualHub))
        .shown_as("URL")
        .from_environment("HF_ENDPOINT");
    command.add_option("--revision", options->revision, "Branch, tag or commit; default: main")
        .shown_as("REVISION");
    command
        .add_option("--cache", options->cache,
                    "Where models are kept; default: HF_HUB_CACHE, HF_HOME/hub or "
                    "~/.cache/huggingface/hub, where the other commands look")
        .shown_as("FOLDER");
    command
        .add_option("--ca", options->ca,
                    "Certificates of the authorities to trust; default: CURL_CA_BUNDLE, "
                    "SSL_CERT_FILE or the system's")
        .shown_as("FILE");
    command.add_flag("--verify", options->verify,
                     "Check what is here already, and download again what is damaged");
    command.add_flag("-q,--quiet", options->quiet, "Only the path, and errors");
    command
        .add_option("--retries", options->retries,
                    "Tries in a row without progress, after a connection was cut")
        .range(0, 1000)
        .shows_default()
        .rare();
    command
        .add_option("--retry-wait", options->retry_wait,
                    "Seconds before the first of them; each next one waits twice as long")
        .range(0.0, 60.0)
        .shows_default()
        .rare();
    command.footer(
        "Examples:\n"
        "  millrace pull Qwen/Qwen3-0.6B               a folder of safetensors\n"
        "  millrace pull Qwen/Qwen3-0.6B-GGUF:Q8_0     a GGUF file of this type\n"
        "  millrace run Qwen/Qwen3-0.6B -p \"Once\"      uses what was pulled\n"
        "Prints the path. A pull that was cut or stopped is continued by the same command. A token "
        "is\nread from HF_TOKEN or where 'hf auth login' puts it, a proxy from HTTPS_PROXY.");
    command.callback([options, &action] { action = [options] { return pull(*options); }; });
}

}  // namespace mr::cli
