// HTTP over libcurl, for millrace-pull alone. Nothing that the server links includes this.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace mr::pull {

// How requests that fail are repeated: after 1, 2, 4, ... seconds, `most` times in a row.
struct Patience {
    int most = 5;
    double first = 1;  // seconds
};

struct HttpOptions {
    std::string hub;    // https://HOST[:PORT][/PATH], without a '/' at the end
    std::string token;  // sent to the hub's own host over HTTPS, and to no other; may be empty
    std::string ca;     // a file with certificates of authorities; empty: libcurl's
    std::string ca_folder;
    Patience patience;
};

// What the last answer of a request said. The first answer's words about the file (X-Linked-*,
// X-Repo-Commit) are kept through redirects: the host that has the bytes does not know them.
struct Answer {
    long status = 0;
    std::string url;  // that answered
    std::string etag, linked_etag, linked_size, commit, content_range;
    std::string error_code, error_message;  // the hub's own
    std::int64_t length = -1;               // of the body; -1: not said
    long retry_after = 0;                   // seconds
    std::string body;                       // at most kMostBody bytes, unless it was streamed

    // The same request may succeed later.
    bool busy() const { return status == 408 || status == 429 || status >= 500; }
};
inline constexpr std::size_t kMostBody = std::size_t{64} << 20;

// No answer, or half of one. may_pass: trying again can help.
class TransportError : public std::runtime_error {
  public:
    TransportError(const std::string& what, bool may_pass)
        : std::runtime_error(what), may_pass(may_pass) {}
    const bool may_pass;
};

class Http {
  public:
    // Called about every second, or more often, while a request or a wait lasts: what is done.
    using Idle = std::function<void(std::string_view what)>;
    // Throws Error (usage) for an address that is none, or not of HTTP.
    Http(HttpOptions options, Idle idle);
    ~Http();
    Http(const Http&) = delete;
    Http& operator=(const Http&) = delete;

    // Follows redirects; never from https to http. `stream` receives the body of a 200 or 206, and
    // may throw. A busy hub is asked again as long as patience lasts. Throws TransportError, or
    // cli::Interrupted after Ctrl-C.
    using Stream = std::function<void(const Answer& head, std::string_view bytes)>;
    Answer get(const std::string& url, const std::vector<std::string>& headers = {},
               const Stream& stream = {});
    // The first answer alone, without its body. Follows redirects within the hub's host.
    Answer head(const std::string& url);
    // Waits before another try, the next after `tries` others, for as long as patience or the hub
    // (`least` seconds) wants; not at all, and false, once patience has ended.
    bool wait(int tries, double least, std::string_view why) const;

    const std::string& hub() const { return options_.hub; }
    bool has_token() const { return !options_.token.empty(); }
    // The token will not be sent, because the hub is asked without encryption.
    bool withholds_token() const;
    static std::string escaped(std::string_view part);  // for a part of a path

  private:
    struct Curl;
    Answer follow(const std::string& url, const std::vector<std::string>& headers,
                  const Stream& stream);
    Answer follow_head(const std::string& url);
    Answer perform(const std::string& url, const std::vector<std::string>& headers, bool head_only,
                   const Stream& stream, std::string& redirect);

    HttpOptions options_;
    Idle idle_;
    std::unique_ptr<Curl> curl_;
};

}  // namespace mr::pull
