// Access control: the server's known host names, allowed origins, and keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/failure.h"
#include "serve/http.h"

namespace mr::serve {

struct GateOptions {
    std::vector<std::string> hosts{};    // names besides localhost; addresses are always accepted
    std::vector<std::string> origins{};  // "https://example.org:8443"; "*" is not accepted
    std::vector<std::string> keys{};     // none: no key is needed
};

class Gate {
  public:
    // Throws Error (usage) for an invalid origin.
    explicit Gate(GateOptions options);

    // Why the request is refused; none: it is allowed. `open`: its path needs no key.
    std::optional<Failure> check(const HttpRequest& request, bool open) const;
    // Headers for pages of other origins (CORS).
    Headers headers(const HttpRequest& request) const;
    // The queue of the request: that of its key, or of its address.
    std::string client_of(const HttpRequest& request) const;
    // Prompts in the cache are shared only within this salt: that of its key. 0: there are no keys.
    std::uint64_t salt_of(const HttpRequest& request) const;

  private:
    bool host_known(std::string_view host) const;
    int key_of(const HttpRequest& request) const;  // -1: none of them

    GateOptions options_;
};

// Compares in a time that depends only on the length of `secret`.
bool equal_in_constant_time(std::string_view secret, std::string_view given);
// One key per line; empty lines and lines that begin with # are skipped. Throws Error (input) if
// there is no key, or one is shorter than 8 bytes or has spaces.
std::vector<std::string> read_keys(const std::string& path);

}  // namespace mr::serve
