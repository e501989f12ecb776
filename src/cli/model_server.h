// A model served over HTTP in this process, for `serve` and `bench serve`.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/context.h"
#include "cli/diffusion.h"
#include "cli/engine.h"
#include "cli/options.h"
#include "serve/access_log.h"
#include "serve/api.h"
#include "serve/lobby.h"

namespace mr::cli {

struct ServerOptions {
    SharedOptions shared;
    serve::HttpOptions http;
    serve::GateOptions gate;
    serve::ApiOptions api;
    ContextOptions context;
    DiffusionChoice diffusion;
    int sequences = 64, queue = 256;
    double timeout = 0;        // seconds per request at most; 0: no limit
    std::int64_t longest = 0;  // positions of a text if --ctx is not given; 0: the model's
    std::string log = "text";  // text, json or none
};

class ModelServer {
  public:
    // Listens, says that it loads to those who ask, loads, and answers. `command`: the command of
    // the options.
    ModelServer(const Command& command, ServerOptions options);
    ModelServer(const ModelServer&) = delete;
    ModelServer& operator=(const ModelServer&) = delete;

    // Finishes open answers, or cuts them after `grace` seconds.
    void end(double grace);

    const ServerOptions& options() const { return options_; }  // updated by loading
    const LoadedModel& loaded() const { return loaded_; }
    const serve::Metrics& metrics() const { return metrics_; }
    const serve::Desk& desk() const { return *desk_; }
    const serve::Api& api() const { return *api_; }
    const serve::HttpServer& http() const { return *http_; }

  private:
    void load_model(const Command& command);

    ServerOptions options_;
    const serve::Gate gate_;
    serve::AccessLog log_;
    serve::Metrics metrics_;
    serve::Lobby lobby_;
    LoadedModel loaded_;
    std::optional<serve::Desk> desk_;
    std::optional<serve::Api> api_;
    std::unique_ptr<serve::HttpServer> http_;  // last: ends before what it uses
};

}  // namespace mr::cli
