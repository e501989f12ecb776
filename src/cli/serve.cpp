// millrace serve: a model as a service over HTTP.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "cli/commands.h"
#include "cli/json.h"
#include "cli/model_server.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/arena.h"
#include "core/error.h"
#include "observe/units.h"

namespace mr::cli {
namespace {

using std::chrono::milliseconds;

double seconds_of(milliseconds time) { return 1e-3 * static_cast<double>(time.count()); }
milliseconds time_of(double seconds) {
    return milliseconds(static_cast<std::int64_t>(1000 * seconds));
}

struct ServeOptions : ServerOptions {
    std::string key_file;
    bool no_auth = false;
    int port = 8080, connections = 4096, connections_per_client = 0;
    int grammar_mib = static_cast<int>(serve::Grammars::kMostBytes >> 20);
    double grace = 30;
    // For the transport, in seconds; the defaults are those of HttpOptions.
    double idle = seconds_of(serve::HttpOptions{}.idle);
    double header = seconds_of(serve::HttpOptions{}.header);
    double request = seconds_of(serve::HttpOptions{}.request);
    double stall = seconds_of(serve::HttpOptions{}.stall);
};

bool is_loopback(const std::string& host) {
    return host == "localhost" || host == "::1" || host.starts_with("127.");
}

void require_safe(const ServeOptions& options) {
    if (!options.key_file.empty() && options.no_auth) {
        throw Error::usage({.field = "--no-auth",
                            .problem = "says that no key is needed, and --api-key-file has keys",
                            .remedy = "leave out one of them"});
    }
    if (is_loopback(options.http.host) || !options.key_file.empty() || options.no_auth) return;
    throw Error::usage({.field = "--host",
                        .value = options.http.host,
                        .problem = "can be reached from other machines, and there are no API keys",
                        .remedy = "give --api-key-file, or --no-auth to do without keys"});
}

std::uint64_t cache_bytes(const MemoryPlan& plan) {
    std::uint64_t bytes = 0;
    for (const MemoryPlan::Item& item : plan.items())
        bytes += item.name == "KV cache" ? item.bytes : 0;
    return bytes;
}

std::string json_message(std::string_view kind, std::string_view line) {
    return serve::json_note(kind, line, serve::log_time());
}

// The line that says where the server is.
std::string ready_line(const ModelServer& server) {
    const serve::HttpServer& http = server.http();
    const std::string url = fmt::format("http://{}:{}", http.address(), http.port());
    const char* const device = server.loaded().engine.cuda ? "GPU" : "CPU";
    const int sequences = server.options().sequences;
    const std::int64_t tokens = server.metrics().cache_tokens,
                       context = server.desk().most_positions();
    const std::uint64_t bytes = cache_bytes(server.options().api.plan);
    const std::string& model = server.options().api.model;
    if (server.options().log != "json") {
        return fmt::format("millrace: {} at {} ({}, context {}, cache of {} tokens in {}, {})\n",
                           one_line(model), url, observe::counted(sequences, "sequence"), context,
                           tokens, format_bytes(bytes), device);
    }
    return json_line({{"time", serve::log_time()},
                      {"ready", model},
                      {"url", url},
                      {"sequences", sequences},
                      {"context", context},
                      {"cache_tokens", tokens},
                      {"cache_bytes", bytes},
                      {"device", device}});
}

// Waits for a signal.
void wait_for_end() {
    while (!InterruptGuard::pending()) std::this_thread::sleep_for(milliseconds(20));
}

int serve_model(const Command& command, ServeOptions options) {
    if (options.log == "json") set_message_format(json_message);
    require_safe(options);
    const InterruptGuard guard;
    if (!options.key_file.empty()) options.gate.keys = serve::read_keys(options.key_file);
    options.http.port = static_cast<std::uint16_t>(options.port);
    options.http.connections = static_cast<std::size_t>(options.connections);
    options.http.connections_per_client = static_cast<std::size_t>(options.connections_per_client);
    options.api.grammar_bytes = static_cast<std::size_t>(options.grammar_mib) << 20;
    options.http.idle = time_of(options.idle);
    options.http.header = time_of(options.header);
    options.http.request = time_of(options.request);
    options.http.stall = time_of(options.stall);
    ModelServer server(command, options);
    const text::ChatWriter& chat = server.api().chat();
    if (chat.continues_texts()) {
        remark(
            "this model has no chat template (--chat-template FILE gives one): it continues texts. "
            "The page offers beginnings; chat requests are written as User: and Assistant:, or "
            "refused with --strict");
    } else if (!chat.notice().empty()) {
        remark(one_line(chat.notice()));
    }
    out(ready_line(server));
    wait_for_end();
    server.end(options.grace);
    return 0;
}

}  // namespace

void add_serve(const Command& app, Action& action) {
    auto options = std::make_shared<ServeOptions>();
    const Command command = app.add_subcommand(
        "serve", "Serve a model over HTTP: the OpenAI and Anthropic APIs, and a web page");
    add_model_options(command, options->shared);
    command.group("Server");
    command.add_option("--host", options->http.host, "Address to listen on")
        .shown_as("ADDRESS")
        .shows_default();
    command.add_option("--port", options->port, "Port; 0: any free port")
        .range(0, 65535)
        .shows_default();
    command
        .add_option("--api-key-file", options->key_file,
                    "Keys that clients must send, one per line; required if --host is not loopback")
        .shown_as("FILE");
    command
        .add_flag("--share-prefixes", options->api.share_prefixes,
                  "Let equal prompts share cache pages across API keys")
        .rare();
    command.add_flag("--no-auth", options->no_auth,
                     "Accept requests without a key, even if --host is not loopback");
    command
        .add_option("--allow-host", options->gate.hosts,
                    "Host name of this server, besides localhost and IP addresses; may be repeated")
        .repeatable()
        .shown_as("NAME");
    command
        .add_option("--allow-origin", options->gate.origins,
                    "Origin whose web pages may use the server; may be repeated")
        .repeatable()
        .shown_as("URL");
    command
        .add_option("--alias", options->api.aliases,
                    "Another name for the model; '*': any name; may be repeated")
        .repeatable()
        .shown_as("NAME");
    command
        .add_option(
            "--trusted-proxy", options->http.trusted_proxies,
            "Address of a proxy whose X-Forwarded-For says who the client is; may be repeated")
        .repeatable()
        .shown_as("ADDRESS");
    command.add_flag("--strict", options->api.strict,
                     "Refuse unknown fields of requests, and conversations with a model without a "
                     "chat template");
    command.add_option("--grace", options->grace, "Seconds to finish answers after SIGTERM")
        .range(0.0, 86400.0)
        .shows_default();
    command.add_option("--log", options->log, "Format of the access log on standard error")
        .one_of({"text", "json", "none"})
        .shows_default();
    command
        .add_flag(
            "--verbose-usage", options->api.verbose_usage,
            "Add to the usage the tokens found in the cache, and a ledger: times, bytes, FLOPs")
        .rare();
    command.add_option("--connections", options->connections, "Connections, at most")
        .range(1, 1 << 20)
        .shows_default()
        .rare();
    command
        .add_option("--connections-per-client", options->connections_per_client,
                    "Connections per address, at most; 0: a quarter of --connections, for loopback "
                    "all of them")
        .range(0, 1 << 20)
        .shows_default()
        .rare();
    command
        .add_option("--grammar-memory", options->grammar_mib,
                    "MiB for cached grammars of schemas and tools, besides those in use")
        .range(1, 1 << 20)
        .shows_default()
        .rare();
    const auto add_time = [&](const char* name, double& seconds, const char* about) {
        command.add_option(name, seconds, about).range(0.1, 86400.0).shows_default().rare();
    };
    add_time("--idle-timeout", options->idle, "Seconds that a connection may wait for a request");
    add_time("--header-timeout", options->header,
             "Seconds from the first byte of a request to its body");
    add_time("--read-timeout", options->request,
             "Seconds from the first byte of a request to its last");
    add_time("--write-timeout", options->stall, "Seconds that a client may go without reading");
    command.group("Scheduling");
    command
        .add_option("--sequences", options->sequences,
                    "Sequences generated at the same time, at most")
        .range(1, 1024)
        .shows_default();
    command
        .add_option("--queue", options->queue,
                    "Sequences that wait, at most; further requests get status 429")
        .range(1, 1 << 20)
        .shows_default();
    command
        .add_option("--timeout", options->timeout, "Seconds that a request may take; 0: no limit")
        .range(0.0, 86400.0)
        .shows_default()
        .rare();
    command.group(kOptions);
    command
        .add_option("--chat-template", options->api.chat.template_file,
                    "A Jinja template to use instead of the model's own")
        .shown_as("FILE");
    command
        .add_option("--template-arg", options->api.chat.arguments,
                    "A variable for the template, JSON or text; may be repeated")
        .repeatable()
        .shown_as("NAME=VALUE");
    add_context_options(command, options->context, {"full", "streaming"});
    add_diffusion_options(command, options->diffusion, false);
    add_engine_options(command, options->shared);
    command.footer(
        "Examples:\n"
        "  millrace serve                                the bundled storyteller on port 8080\n"
        "  millrace serve model.gguf --port 0            prints the port that was free\n"
        "  millrace serve model.gguf --host 0.0.0.0 --api-key-file keys\n"
        "Clients use http://127.0.0.1:8080/v1 as their base URL. SIGTERM and Ctrl-C finish what "
        "is\n"
        "being answered, for --grace seconds; a second one ends at once. docs/server.md has the\n"
        "routes and their fields.");
    command.callback([options, command, &action] {
        action = [options, command] { return serve_model(command, *options); };
    });
}

}  // namespace mr::cli
