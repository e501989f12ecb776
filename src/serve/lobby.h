// Requests from the first moment on: while the model loads they are answered here, and then by the
// routes (api.h).
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "serve/access_log.h"
#include "serve/api.h"
#include "serve/gate.h"
#include "serve/http.h"
#include "serve/metrics.h"

namespace mr::serve {

class Lobby {
  public:
    // All arguments must outlive the object, and it the server whose handlers it makes.
    Lobby(const Gate& gate, Metrics& metrics, AccessLog& log, std::string version)
        : gate_(gate), metrics_(metrics), log_(log), version_(std::move(version)) {}
    Lobby(const Lobby&) = delete;
    Lobby& operator=(const Lobby&) = delete;

    HttpHandlers handlers();
    // The model is loaded: from now on `api` answers.
    void open(Api& api) { api_ = &api; }

  private:
    std::optional<HttpReply> admit(const HttpRequest& head) const;
    void handle(const ExchangePtr& exchange) const;

    const Gate& gate_;
    Metrics& metrics_;
    AccessLog& log_;
    const std::string version_;
    std::atomic<Api*> api_ = nullptr;
};

}  // namespace mr::serve
