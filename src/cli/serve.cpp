// millrace serve: a model as a service over HTTP.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/diffusion.h"
#include "cli/engine.h"
#include "cli/model_name.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/version.h"
#include "core/error.h"
#include "decode/eval.h"
#include "serve/access_log.h"
#include "serve/api.h"
#include "serve/fingerprint.h"
#include "serve/page/page.h"

namespace mr::cli {
namespace {

using std::chrono::milliseconds;

struct ServeOptions {
    SharedOptions shared;
    serve::HttpOptions http;
    serve::GateOptions gate;
    serve::ApiOptions api;
    ContextOptions context;
    DiffusionChoice diffusion;
    std::string key_file;
    bool no_auth = false;
    int port = 8080, sequences = 64, queue = 256, connections = 4096;
    double grace = 30, timeout = 0;
    std::string log = "text";
};

bool is_loopback(const std::string& host) {
    return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// The name under which a model is served: its file's, without the ending, or its folder's.
std::string id_of(const std::string& source) {
    if (source.starts_with("random:")) return source;
    std::filesystem::path path = std::filesystem::path(source).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    if (std::filesystem::is_directory(source)) path = std::filesystem::canonical(source);
    return std::filesystem::is_directory(source) ? path.filename().string() : path.stem().string();
}

serve::AccessLog::Kind log_kind(const std::string& name) {
    using Kind = serve::AccessLog::Kind;
    return name == "none" ? Kind::none : name == "json" ? Kind::json : Kind::text;
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

LoadedModel load_for(const Command& command, ServeOptions& options) {
    return load(options.shared, [&](const model::Model& model) {
        decode::GenerateOptions& generate = options.api.generate;
        model::EngineOptions wanted = engine_options(options.shared);
        require_streaming(command, options.context);
        make_stream(options.context, model.spec, -1, wanted, generate);
        use_diffusion(command, options.diffusion, model.spec, wanted, generate);
        if (model.spec.diffusion) {
            // Full attention: one text at a time.
            if (model.spec.diffusion->block == 0) options.sequences = 1;
            wanted.max_sequences = options.sequences;
        } else {
            wanted.max_sequences = options.sequences + 1;  // one that embeddings have
            wanted.max_logits = std::max(wanted.max_sequences, decode::eval_logit_rows(model.spec));
        }
        return wanted;
    });
}

serve::HttpReply chat_page() {
    return {.type = "text/html; charset=utf-8",
            .body = std::string(serve::page()),
            .headers = {{"Content-Security-Policy", std::string(serve::page_policy())},
                        {"ETag", std::string(serve::page_tag())},
                        {"Cache-Control", "no-cache"},
                        {"X-Content-Type-Options", "nosniff"},
                        {"Referrer-Policy", "no-referrer"}}};
}

// Until a signal comes.
void wait_for_end() {
    while (!InterruptGuard::pending()) std::this_thread::sleep_for(milliseconds(20));
}

// What is being answered is finished, or cut when the time is over.
void end(serve::HttpServer& http, serve::Desk& desk, double grace) {
    desk.drain();
    http.drain();
    const auto until =
        std::chrono::steady_clock::now() + milliseconds(static_cast<std::int64_t>(1000 * grace));
    while (!desk.wait_drained(milliseconds(20)) && std::chrono::steady_clock::now() < until) {
    }
    desk.cut();
    http.wait_drained(milliseconds(5000));  // what was made goes out
}

int serve_model(const Command& command, ServeOptions options) {
    require_safe(options);
    const InterruptGuard guard;
    if (!options.key_file.empty()) options.gate.keys = serve::read_keys(options.key_file);
    options.http.port = static_cast<std::uint16_t>(options.port);
    options.http.connections = static_cast<std::size_t>(options.connections);
    const serve::Gate gate(options.gate);
    serve::AccessLog log(log_kind(options.log), [](std::string_view text) { err(text); });
    // An address that is taken is told before a model loads.
    auto listening = std::make_unique<serve::HttpServer>(options.http);
    LoadedModel loaded = load_for(command, options);
    options.api.model = id_of(loaded.model->source);
    options.api.version = version_line();
    options.api.fingerprint =
        serve::fingerprint(options.api.version, loaded.model->source, loaded.engine.cuda);
    serve::Metrics metrics;
    serve::Desk desk(make_engine(loaded),
                     {.sequences = options.sequences,
                      .queue = static_cast<std::size_t>(options.queue),
                      .most = milliseconds(static_cast<std::int64_t>(1000 * options.timeout))},
                     metrics);
    serve::Api api(desk, gate, metrics, options.api);
    api.add_page("/", chat_page());
    if (const std::string& notice = api.chat().notice(); !notice.empty()) {
        err(fmt::format("note: {}\n", one_line(notice)));
    }
    // Here, so that it ends before what its handlers use.
    const std::unique_ptr<serve::HttpServer> http = std::move(listening);
    api.set_connections([&] { return http->connections(); });
    http->start({.admit = [&](const serve::HttpRequest& head) { return api.admit(head); },
                 .handle = [&](const serve::ExchangePtr& exchange) { api.handle(exchange); },
                 .extra = [&](const serve::HttpRequest& request) { return gate.headers(request); },
                 .refuse = serve::Api::refuse,
                 .done =
                     [&](const serve::Access& access) {
                         ++metrics.responses[static_cast<std::size_t>(access.status / 100)];
                         log.add(access);
                     }});
    out(fmt::format("millrace: {} at http://{}:{} ({} sequences, context {}, {})\n",
                    one_line(options.api.model), http->address(), http->port(), options.sequences,
                    desk.most_positions(), loaded.engine.cuda ? "GPU" : "CPU"));
    wait_for_end();
    end(*http, desk, options.grace);
    return 0;
}

}  // namespace

void add_serve(const Command& app, Action& action) {
    auto options = std::make_shared<ServeOptions>();
    const Command command = app.add_subcommand(
        "serve", "Serve a model over HTTP, to OpenAI's and Anthropic's clients and a browser");
    add_model_options(command, options->shared);
    command.group("Server");
    command.add_option("--host", options->http.host, "Address to listen on")
        .shown_as("ADDRESS")
        .shows_default();
    command.add_option("--port", options->port, "Port; 0: one that is free")
        .range(0, 65535)
        .shows_default();
    command
        .add_option("--api-key-file", options->key_file,
                    "Keys that clients must send, one a line; needed where --host is not loopback")
        .shown_as("FILE");
    command.add_flag("--no-auth", options->no_auth, "Do without keys, whatever the --host");
    command
        .add_option("--allow-host", options->gate.hosts,
                    "A name of this server beside localhost and addresses; may be repeated")
        .repeatable()
        .shown_as("NAME");
    command
        .add_option("--allow-origin", options->gate.origins,
                    "A web page's origin that may use the server; may be repeated")
        .repeatable()
        .shown_as("URL");
    command
        .add_option("--alias", options->api.aliases,
                    "A further name of the model, '*' for any; may be repeated")
        .repeatable()
        .shown_as("NAME");
    command.add_option("--grace", options->grace, "Seconds to finish answers after SIGTERM")
        .range(0.0, 86400.0)
        .shows_default();
    command.add_option("--log", options->log, "How answers are written down on standard error")
        .one_of({"text", "json", "none"})
        .shows_default();
    command
        .add_flag("--verbose-usage", options->api.verbose_usage,
                  "With the counts of tokens what was found in the cache, and times")
        .rare();
    command.add_option("--connections", options->connections, "Connections at most")
        .range(1, 1 << 20)
        .shows_default()
        .rare();
    command.group("Scheduling");
    command.add_option("--sequences", options->sequences, "Texts that run together at most")
        .range(1, 1024)
        .shows_default();
    command.add_option("--queue", options->queue, "Texts that wait at most; then 429")
        .range(1, 1 << 20)
        .shows_default();
    command
        .add_option("--timeout", options->timeout, "Seconds that a request may take; 0: any time")
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
