// millrace bench serve: a server under load, this program's or any other with OpenAI's API.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/serve/load.h"
#include "cli/bench/serve_figures.h"
#include "cli/commands.h"
#include "cli/json.h"
#include "cli/model_server.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "formats/json.h"
#include "observe/device_bandwidth.h"

namespace mr::cli {
namespace {

struct BenchServeOptions {
    ServerOptions server;
    bench::LoadShape shape;
    std::vector<int> concurrency{1, 8, 32};
    double rate = 0;
    int requests = 0, idle = 0, sequences = 0;
    std::string url, key;
    bool given_concurrency = false, given_vocab = false;
};

// ---- the server ---------------------------------------------------------------------------------

// The server to measure: one in this process, or another.
struct Target {
    std::unique_ptr<ModelServer> own;
    bench::Place place;
    std::string model, device;
    bool takes_ids = false;  // known to accept token ids: it is Millrace
};

Target own_server(const BenchServeOptions& options, bench::LoadShape& shape,
                  const Command& command) {
    ServerOptions wanted = options.server;
    const int most = *std::max_element(options.concurrency.begin(), options.concurrency.end());
    const bool open_loop = options.rate > 0 && !options.given_concurrency;  // open loop only
    if (!open_loop) wanted.sequences = std::min(most, 1024);
    if (options.sequences > 0) wanted.sequences = options.sequences;
    wanted.longest = shape.input + shape.output;
    // No limit should be reached: only the work is measured.
    wanted.queue = 1 << 20;
    wanted.http.connections = 1 << 20;
    wanted.http.idle = std::chrono::hours(24);
    wanted.log = "none";
    Target target;
    target.own = std::make_unique<ModelServer>(command, std::move(wanted));
    target.takes_ids = true;
    const ModelServer& server = *target.own;
    const model::ModelSpec& spec = server.loaded().model->spec;
    target.place = bench::Place::of(
        fmt::format("http://{}:{}", server.http().address(), server.http().port()), "");
    target.model = server.loaded().model->source;
    target.device = observe::device_name(server.loaded().engine.cuda);
    shape.model = server.options().api.model;
    if (!options.given_vocab) shape.vocab = spec.vocab;
    if (spec.diffusion) shape.avoided = spec.diffusion->mask;
    return target;
}

[[noreturn]] void refused(const bench::Place& place, const std::string& problem) {
    throw Error::input(
        {.field = "--url",
         .value = place.url,
         .problem = problem,
         .remedy = problem.starts_with("status 401") ? "give its key with --api-key" : ""});
}

// The answer as JSON; none if there is no such route.
std::optional<formats::JsonDocument> json_at(const bench::Place& place, const char* path) {
    const bench::Fetched got = bench::fetch(place, path);
    if (got.status == 404) return std::nullopt;
    if (got.status != 200) {
        refused(place, fmt::format("status {}: {}", got.status, bench::error_words(got.body)));
    }
    try {
        return formats::JsonDocument::parse(got.body, path);
    } catch (const Error& error) {
        refused(place, error.what());
    }
}

Target other_server(const BenchServeOptions& options, bench::LoadShape& shape) {
    Target target;
    target.place = bench::Place::of(options.url, options.key);
    const auto models = json_at(target.place, "/v1/models");
    if (models && !models->root()["data"].empty()) {
        const formats::JsonValue id = models->root()["data"][0]["id"];
        if (id.is_string()) shape.model = id.text();
    }
    target.model = shape.model;
    target.device = options.url;
    if (shape.text) return target;
    // Millrace's own server reports its number of tokens.
    if (const bench::Fetched props = bench::fetch(target.place, "/props"); props.status == 200) {
        try {
            const auto document = formats::JsonDocument::parse(props.body, "/props");
            const formats::JsonValue vocab = document.root()["vocabulary"];
            target.takes_ids = vocab.is_integer_in(1, 1 << 30);
            if (target.takes_ids && !options.given_vocab) shape.vocab = vocab.get<std::int64_t>();
        } catch (const Error&) {  // another server
        }
    }
    return target;
}

// ---- the measurement ----------------------------------------------------------------------------

class Measurement {
  public:
    Measurement(const BenchServeOptions& options, const Command& command)
        : options_(options), shape_(options.shape) {
        target_ = options.url.empty() ? own_server(options_, shape_, command)
                                      : other_server(options_, shape_);
        idle_ = bench::idle_wires(target_.place, options.idle);
    }

    void run();

  private:
    std::vector<bench::LoadPlan> plans() const;
    void warm_up(const bench::LoadPlan& plan);
    Json measure(const bench::LoadPlan& plan);

    const BenchServeOptions& options_;
    bench::LoadShape shape_;
    Target target_;
    std::vector<bench::Wire> idle_;
    std::uint64_t next_ = 0;  // number of the next request: no prompt is repeated
    ProgressLine line_;
};

std::vector<bench::LoadPlan> Measurement::plans() const {
    constexpr int kLeast = 16, kTimes = 3, kSeconds = 10, kWarm = 4;
    std::vector<bench::LoadPlan> out;
    const auto count = [&](int usual) {
        return options_.requests > 0 ? options_.requests : std::max(usual, kLeast);
    };
    if (options_.rate == 0 || options_.given_concurrency) {
        for (const int clients : options_.concurrency) {
            out.push_back({.clients = clients, .requests = count(kTimes * clients)});
        }
    }
    if (options_.rate > 0) {
        const int usual = static_cast<int>(std::ceil(kSeconds * options_.rate));
        out.push_back({.clients = kWarm, .rate = options_.rate, .requests = count(usual)});
    }
    return out;
}

// Runs as many clients at once with fewer tokens, for one-time work.
void Measurement::warm_up(const bench::LoadPlan& plan) {
    constexpr int kTokens = 16;
    bench::LoadShape shape = shape_;
    shape.output = std::min(shape.output, kTokens);
    const bench::LoadPlan warm{.clients = plan.clients, .requests = plan.clients, .first = next_};
    next_ += static_cast<std::uint64_t>(warm.requests);
    const bench::LoadMeasured m = bench::run_load(target_.place, shape, warm, line_.callback());
    if (m.failed < m.requests) return;
    // An unknown server may refuse token ids.
    const bool refused = m.failure.starts_with("status 400") || m.failure.starts_with("status 422");
    const std::string remedy =
        refused && !shape.text && !target_.takes_ids
            ? fmt::format(
                  "prompts are token ids below {}: give --vocab where the model has fewer, "
                  "--prompt-text where the server takes none",
                  shape.vocab)
            : "";
    throw Error::input({.field = options_.url.empty() ? "" : "--url",
                        .value = options_.url,
                        .problem = fmt::format("every request failed: {}", m.failure),
                        .remedy = remedy});
}

Json Measurement::measure(const bench::LoadPlan& wanted) {
    warm_up(wanted);
    bench::LoadPlan plan = wanted;
    plan.first = next_;
    next_ += static_cast<std::uint64_t>(plan.requests);
    const ModelServer* const own = target_.own.get();
    const Counts before = own ? counts_of(*own) : Counts();
    const bench::LoadMeasured m = bench::run_load(target_.place, shape_, plan, line_.callback());
    Json row = level_json(plan, m);
    if (own) row["server"] = server_json(before, counts_of(*own));
    if (options_.idle > 0) {
        row["idle"] = std::count_if(idle_.begin(), idle_.end(),
                                    [](const bench::Wire& wire) { return wire.stands(); });
    }
    return row;
}

void Measurement::run() {
    Json json = {{"bench", "serve"},
                 {"model", target_.model},
                 {target_.own ? "device" : "url", target_.device},
                 {"input", shape_.input},
                 {"output", shape_.output},
                 {"shared_prefix", shape_.shared_prefix},
                 {"idle", options_.idle}};
    if (target_.own) {
        json["sequences"] = target_.own->options().sequences;
        json["ctx"] = target_.own->desk().most_positions();
    }
    json["rows"] = Json::array();
    std::string text = level_title(target_.model, target_.device, shape_);
    for (const bench::LoadPlan& plan : plans()) {
        json["rows"].push_back(measure(plan));
        text += level_text(json["rows"].back());
    }
    line_.remove();
    if (options_.idle > 0) {
        text += fmt::format("  beside {} idle connections, of which {} stand\n", options_.idle,
                            json["rows"].back()["idle"].get<int>());
    }
    out(options_.server.shared.json ? json_text(json) : text);
}

void require_sense(const BenchServeOptions& options) {
    const bench::LoadShape& shape = options.shape;
    if (shape.shared_prefix >= shape.input) {
        throw Error::usage({.field = "--shared-prefix",
                            .value = std::to_string(shape.shared_prefix),
                            .problem = "leaves no token that differs between prompts",
                            .remedy = "give less than --input"});
    }
    if (options.url.empty() && !options.key.empty()) {
        throw Error::usage({.field = "--api-key",
                            .problem = "only applies with --url",
                            .remedy = "add it, or leave --api-key out"});
    }
    if (!options.url.empty() && !options.server.shared.model.empty()) {
        throw Error::usage({.field = "MODEL",
                            .value = options.server.shared.model,
                            .problem = "the server of --url has its own model",
                            .remedy = "leave out one of them"});
    }
}

}  // namespace

void add_bench_serve(const Command& bench_command, Action& action) {
    auto options = std::make_shared<BenchServeOptions>();
    const Command command = bench_command.add_subcommand(
        "serve", "A server under load: time to the first token, between tokens, tokens per second");
    add_model_options(command, options->server.shared);
    command
        .add_option(
            "--concurrency", options->concurrency,
            "Clients, each with one request at a time; a list is measured one after the other")
        .separated_by(',')
        .range(1, 65536)
        .shows_default();
    command.add_option("--input", options->shape.input, "Tokens per prompt")
        .range(1, 1 << 20)
        .shows_default();
    command.add_option("--output", options->shape.output, "Tokens generated per request")
        .range(1, 1 << 20)
        .shows_default();
    command
        .add_option("--rate", options->rate,
                    "Requests per second, at random (Poisson) times; after the clients of "
                    "--concurrency where that is given, too")
        .range(0.001, 1e6);
    command
        .add_option("--requests", options->requests,
                    "Requests per row; 0: three per client or 10 seconds of --rate, at least 16")
        .range(0, 1 << 24);
    command.add_option("--idle", options->idle, "Idle connections that are held open meanwhile")
        .range(0, 60000);
    command
        .add_option("--shared-prefix", options->shape.shared_prefix,
                    "Tokens at the start that all prompts share")
        .range(0, 1 << 20);
    command.add_option("--seed", options->shape.seed, "Seed of prompts and arrivals");
    command.group("Another server");
    command
        .add_option(
            "--url", options->url,
            "A server with OpenAI's API, instead of one in this process: http://127.0.0.1:8080")
        .shown_as("URL");
    command.add_option("--api-key", options->key, "Its key").shown_as("KEY");
    command.add_flag("--prompt-text", options->shape.text,
                     "Send prompts as words, for a server that does not accept token ids");
    command
        .add_option("--vocab", options->shape.vocab,
                    "Token ids of prompts are below this; the model's, where that is known")
        .range(std::int64_t{2}, std::int64_t{1} << 30)
        .shows_default();
    command.group(kOptions);
    command
        .add_option("--sequences", options->sequences,
                    "Sequences generated at the same time, at most; 0: as many as there are "
                    "clients, 64 with --rate")
        .range(0, 1024);
    add_context_options(command, options->server.context, {"full", "streaming"});
    add_diffusion_options(command, options->server.diffusion, false);
    add_engine_options(command, options->server.shared);
    add_disable_option(command, options->server.shared);
    add_json_option(command, options->server.shared);
    command.footer(
        "Examples:\n"
        "  millrace bench serve --concurrency 1,8\n"
        "  millrace bench serve random:llama-3-8b:bf16 --concurrency 1,8,32,128 --input 1024\n"
        "  millrace bench serve MODEL --rate 10 --idle 1000\n"
        "  millrace bench serve --url http://127.0.0.1:8000 --concurrency 32 --prompt-text\n"
        "Requests go through HTTP to /v1/completions, as streams. docs/server.md says what the\n"
        "figures are.");
    command.callback([options, command, &action] {
        options->given_concurrency = command.given("--concurrency");
        options->given_vocab = command.given("--vocab");
        action = [options, command] {
            const InterruptGuard guard;
            require_sense(*options);
            Measurement(*options, command).run();
            return 0;
        };
    });
}

}  // namespace mr::cli
