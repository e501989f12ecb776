// HTTP/1.1 transport only: connections, limits, and requests that any thread may answer. It does
// not know about models. Boost is included only through http_connection.h.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mr::serve {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
    std::string method, path, query;  // the path is not decoded
    Headers headers;                  // names in lower case
    std::string body;                 // until its handler returns, which frees it
    std::string peer;                 // the client's address, without the port
    std::string id;                   // of its `x-request-id`, or made; in the answer and the log
    bool old_version = false;         // HTTP/1.0

    // The value of the first header of that name (in lower case); empty: none.
    std::string_view header(std::string_view name) const;
    std::size_t count(std::string_view name) const;
};

struct HttpReply {
    int status = 200;
    std::string type = "application/json";
    std::string body{};
    Headers headers{};
};

// One answer in the access log.
struct Access {
    const HttpRequest& request;
    int status = 0;  // 0: the client disconnected before
    std::uint64_t bytes = 0;
    double seconds = 0;
    bool whole = true;  // false: the connection ended before the answer was complete
};

// One request and its answer. Any thread may call any member, also after the connection has ended.
// If all references are dropped before there is an answer, the connection ends.
class Exchange {
  public:
    virtual ~Exchange() = default;
    Exchange() = default;
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;

    virtual const HttpRequest& request() const = 0;
    // The whole answer; or a stream: begin(), write() any number of times, end(). Only the first
    // answer counts.
    virtual void reply(HttpReply reply) = 0;
    virtual void begin(HttpReply head) = 0;
    // False: the client has disconnected or does not read, and the stream was cut.
    virtual bool write(std::string_view piece) = 0;
    virtual void end() = 0;
    // Ends the connection in the middle of a stream, so that the client notices the missing
    // part.
    virtual void cut() = 0;
    // Whether the client has disconnected.
    virtual bool gone() const = 0;
};
using ExchangePtr = std::shared_ptr<Exchange>;

struct HttpOptions {
    std::string host = "127.0.0.1";
    std::uint16_t port = 0;  // 0: any free port
    // Addresses of proxies: where such a peer forwards, `X-Forwarded-For` says who the client is.
    std::vector<std::string> trusted_proxies{};
    std::size_t header_bytes = 16 << 10;
    std::size_t body_bytes = 8 << 20;
    std::size_t all_bodies = 256 << 20;  // of requests being read or handled
    std::size_t connections = 4096;
    // Per client: an address, or an IPv6 network of 64 bits, which one host may use alone. 0: a
    // quarter of all, and no limit for the loopback address, where a proxy connects for many
    // clients. Of a client behind a trusted proxy: requests at the same time.
    std::size_t connections_per_client = 0;
    std::size_t bodies_per_client = 0;         // bytes of `all_bodies`; 0: by the same rule
    std::size_t unread_bytes = 1 << 20;        // of a stream that its client has not read
    std::chrono::milliseconds idle{75000};     // between requests
    std::chrono::milliseconds header{10000};   // first byte of a request to its body
    std::chrono::milliseconds request{30000};  // first byte to last byte
    std::chrono::milliseconds stall{30000};    // for a client that reads nothing
    int workers = 2;                           // threads that handle requests with a body
};

struct HttpHandlers {
    // Called before the body is read: an answer refuses the request.
    std::function<std::optional<HttpReply>(const HttpRequest& head)> admit;
    // GET, HEAD and OPTIONS run on the connection thread and must be quick. Others run on a
    // worker.
    std::function<void(const ExchangePtr&)> handle;
    // Additional headers of every answer, refusals included.
    std::function<Headers(const HttpRequest&)> extra;
    // The answer to an invalid request, or one beyond a limit: what is known of it, which may be
    // nothing.
    std::function<HttpReply(const HttpRequest& head, int status, const std::string& problem)>
        refuse;
    std::function<void(const Access&)> done;
    // Requests wait for a worker in a queue of this name, and the queues take turns. Unset: one for
    // each address.
    std::function<std::string(const HttpRequest&)> client{};
};

struct HttpHost;  // http_connection.h

class HttpServer {
  public:
    // Listens at once; connections wait until start(). Throws Error if it cannot listen (input), or
    // for a proxy without an address (usage).
    explicit HttpServer(HttpOptions options);
    // Cuts connections that are still open.
    ~HttpServer();
    HttpServer(const HttpServer&) = delete;
    HttpServer& operator=(const HttpServer&) = delete;

    void start(HttpHandlers handlers);

    const std::string& address() const;  // with brackets for IPv6
    std::uint16_t port() const;
    std::size_t connections() const;

    // Accepts no more connections and requests; idle connections end, others after their
    // answer.
    void drain();
    // Waits until all connections have ended, for `most` at most. False: some have not.
    bool wait_drained(std::chrono::milliseconds most);

  private:
    std::shared_ptr<HttpHost> impl_;
};

// A client, for limits and turns per client: an IPv4 address, or the first 64 bits of an IPv6 one.
struct HttpClient {
    std::string name{};
    bool loopback = false;
};
HttpClient http_client(const std::string& address);
// As addresses are compared. Throws Error (usage) for what is no address.
std::vector<std::string> proxy_addresses(const std::vector<std::string>& named);
// Whether a proxy of proxy_addresses() has this address.
bool is_proxy(const std::vector<std::string>& proxies, const std::string& peer);
// The address of the client of a request that came from `peer`: if that is a proxy, the last
// address of its `X-Forwarded-For` that is none.
std::string forwarded_client(const std::vector<std::string>& proxies, const std::string& peer,
                             const Headers& headers);
// `given`, if it may stand in a log and in a header: at most 128 letters, digits and marks of ids.
// Else a new one.
std::string request_id(std::string_view given);
// Connections that one client may have.
std::size_t most_of_client(const HttpOptions& options, bool loopback);
// Bytes that its bodies may take: at least one of the largest.
std::size_t most_bodies_of_client(const HttpOptions& options, bool loopback);

// Why a request is refused for its head alone; none: it is not. `old_version`: HTTP/1.0.
struct HeadProblem {
    int status = 400;
    const char* text = "";
};
std::optional<HeadProblem> problem_of_head(const HttpRequest& head);

// Only ASCII letters.
std::string lower_case(std::string_view text);
// "OK", "Not Found"; "" for a status that is not used here.
std::string_view status_words(int status);
// The head of an answer, up to the empty line.
struct HeadOptions {
    bool keep_alive = true, old_version = false;  // HTTP/1.0
    std::optional<std::size_t> length{};          // none: chunks
};
std::string head_text(const HttpReply& reply, const Headers& extra, const HeadOptions& options);
// Appends the piece as an HTTP chunk.
std::string& append_chunk(std::string& out, std::string_view piece);

}  // namespace mr::serve
