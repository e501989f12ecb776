#include "cli/model_server.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "cli/terminal.h"
#include "cli/version.h"
#include "core/cpu.h"
#include "core/cuda/device.h"
#include "decode/eval.h"
#include "decode/measure.h"
#include "observe/device_bandwidth.h"
#include "serve/fingerprint.h"
#include "serve/page/page.h"

namespace mr::cli {
namespace {

using std::chrono::milliseconds;

// The served name of a model: its file's name without the suffix, or its folder's.
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

// Memory figures for /props: the engine's plan, the capacity, the bandwidth.
void look_at(const model::Engine& engine, serve::ApiOptions& api) {
    const bool cuda = engine.options().cuda;
    api.plan = model::plan_engine(engine.model(), engine.options());
    api.capacity = cuda ? cuda::require_device().memory_bytes : cpu_info().memory_bytes;
    // What fits into the cache is not read from memory, whose rate is then no limit.
    api.in_cache = engine.model().weights.bytes_per_token() < observe::place_of(cuda).cache_bytes;
    if (!api.in_cache) api.read_bandwidth = decode::read_bandwidth(engine);
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

}  // namespace

ModelServer::ModelServer(const Command& command, ServerOptions options)
    : options_(std::move(options)),
      gate_(options_.gate),
      log_(log_kind(options_.log), [](std::string_view text) { err(text); }),
      lobby_(gate_, metrics_, log_, version_line()),
      // If the address is taken, this fails before a model loads.
      http_(std::make_unique<serve::HttpServer>(options_.http)) {
    http_->start(lobby_.handlers());
    load_model(command);
    options_.api.model = id_of(loaded_.model->source);
    options_.api.version = version_line();
    options_.api.fingerprint =
        serve::fingerprint(options_.api.version, loaded_.model->source, loaded_.engine.cuda);
    std::unique_ptr<model::Engine> engine = make_engine(loaded_);
    look_at(*engine, options_.api);
    desk_.emplace(std::move(engine),
                  serve::DeskOptions{
                      .sequences = options_.sequences,
                      .queue = static_cast<std::size_t>(options_.queue),
                      .most = milliseconds(static_cast<std::int64_t>(1000 * options_.timeout))},
                  metrics_);
    api_.emplace(*desk_, gate_, metrics_, options_.api);
    api_->add_page("/", chat_page());
    api_->set_connections([this] { return http_->connections(); });
    api_->set_notes([this](const std::string& line) { log_.note(line); });
    lobby_.open(*api_);
}

void ModelServer::load_model(const Command& command) {
    loaded_ = load(options_.shared, [&](const model::Model& model) {
        decode::GenerateOptions& generate = options_.api.generate;
        model::EngineOptions wanted = engine_options(options_.shared);
        require_streaming(command, options_.context);
        make_stream(options_.context, model.spec, -1, wanted, generate);
        use_diffusion(command, options_.diffusion, model.spec, wanted, generate);
        if (wanted.context == 0 && !generate.stream) wanted.context = options_.longest;
        if (model.spec.diffusion) {
            // Full attention: one text at a time.
            if (model.spec.diffusion->block == 0) options_.sequences = 1;
            wanted.max_sequences = options_.sequences;
        } else {
            wanted.max_sequences = options_.sequences + 1;  // one for embeddings
            wanted.max_logits = std::max(wanted.max_sequences, decode::eval_logit_rows(model.spec));
        }
        return wanted;
    });
}

void ModelServer::end(double grace) {
    desk_->drain();
    http_->drain();
    const auto until =
        std::chrono::steady_clock::now() + milliseconds(static_cast<std::int64_t>(1000 * grace));
    while (!desk_->wait_drained(milliseconds(20)) && std::chrono::steady_clock::now() < until) {
    }
    desk_->cut();
    // Finished texts are still sent, also to a slow client.
    const auto left = until - std::chrono::steady_clock::now();
    http_->wait_drained(
        std::max(milliseconds(5000), std::chrono::duration_cast<milliseconds>(left)));
}

}  // namespace mr::cli
