// Who may ask: the names under which the server is known, the pages that may use it, and keys.
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
    std::vector<std::string> hosts{};    // names beside localhost; addresses are always taken
    std::vector<std::string> origins{};  // "https://example.org:8443"; "*" is none
    std::vector<std::string> keys{};     // none: every client may ask
};

class Gate {
  public:
    // Throws Error (usage) for what is no origin.
    explicit Gate(GateOptions options);

    // Why the request is refused; none: it may pass. `open`: no key is needed for its path.
    std::optional<Failure> check(const HttpRequest& request, bool open) const;
    // Headers for pages of other origins (CORS).
    Headers headers(const HttpRequest& request) const;
    // Whose queue the request waits in: its key, or the address that it came from.
    std::string client_of(const HttpRequest& request) const;
    // Whose prompts it may find in the cache: those of its key. 0: there are no keys.
    std::uint64_t salt_of(const HttpRequest& request) const;

  private:
    bool host_known(std::string_view host) const;
    int key_of(const HttpRequest& request) const;  // -1: none of them

    GateOptions options_;
};

// Whether the texts are equal, in a time that follows from the length of `secret` alone.
bool equal_in_constant_time(std::string_view secret, std::string_view given);
// One key a line; empty lines and those that begin with # are none. Throws Error (input) where
// there is no key, or one is shorter than 8 bytes or has spaces.
std::vector<std::string> read_keys(const std::string& path);

}  // namespace mr::serve
