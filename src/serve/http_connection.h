// Shared by http.cpp (the server) and http_connection.cpp (its connections). Internal to these two:
// it includes Boost.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <condition_variable>
#include <map>
#include <set>
#include <thread>

#include "core/out_of_memory.h"
#include "serve/http.h"
#include "serve/http_bodies.h"
#include "serve/turns.h"

namespace mr::serve {
namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

inline constexpr Clock::time_point kNever = Clock::time_point::max();
inline constexpr const char* kClientFull = "this client has as many connections as it may have";

class HttpConnection;

class HttpExchange final : public Exchange {
  public:
    HttpExchange(std::shared_ptr<HttpConnection> connection, HttpRequest request,
                 BodyBytes::Share body_bytes)
        : connection_(std::move(connection)),
          request_(std::move(request)),
          body_bytes_(std::move(body_bytes)) {}

    const HttpRequest& request() const override { return request_; }
    void reply(HttpReply reply) override;
    void begin(HttpReply head) override;
    bool write(std::string_view piece) override;
    void end() override;
    void cut() override;
    bool gone() const override { return gone_; }

    void set_gone() { gone_ = true; }
    // Called by the thread that has run the handler. Other threads read the request, but never its
    // body.
    void free_body();
    void add_head(const HttpReply& reply, std::optional<std::size_t> length);
    void wake();  // with the mutex held

    const std::shared_ptr<HttpConnection> connection_;
    HttpRequest request_;
    BodyBytes::Share body_bytes_;
    Headers extra_;
    std::size_t most_unread_ = 0;
    bool keep_alive_ = true, old_version_ = false, head_only_ = false;
    const Clock::time_point start_ = Clock::now();
    std::uint64_t sent_ = 0;  // only on the connection's thread

    std::mutex mutex_;
    std::string pending_;  // bytes not yet taken by the connection
    int status_ = 0;
    bool ended_ = false, cut_ = false, overfull_ = false, woken_ = false;
    // Polled before every pass: on a cache line of its own, away from the fields that writes of the
    // answer touch.
    alignas(64) std::atomic<bool> gone_ = false;
};
using HttpExchangePtr = std::shared_ptr<HttpExchange>;

struct HttpHost : std::enable_shared_from_this<HttpHost> {
    explicit HttpHost(const HttpOptions& wanted) : options(wanted) {}

    void listen();
    void start();
    void serve();               // the connection thread
    void close_all() noexcept;  // once that thread has ended
    void accept();
    void take(tcp::socket socket);
    void sweep();
    void work();
    void give_to_worker(HttpExchangePtr exchange);
    // Its client has left: no worker needs to take it.
    void take_from_workers(const HttpExchangePtr& exchange);
    void handle(const HttpExchangePtr& exchange);
    void call_handler(const HttpExchangePtr& exchange);
    void remove(const std::shared_ptr<HttpConnection>& connection);
    // Whether the client has as many connections, or forwarded requests, as it may have.
    bool is_full(const HttpClient& client) const;
    void count_less(const std::string& client);
    // Called by any thread: the connection has something to send. Many calls at once wake the
    // connection thread only once. Without memory for that, the next sweep does it.
    void wake(const std::shared_ptr<HttpConnection>& connection) noexcept;
    void pump_woken();
    std::vector<std::shared_ptr<HttpConnection>> all_connections() const {
        return {connections.begin(), connections.end()};
    }

    const HttpOptions options;
    HttpHandlers handlers;
    asio::io_context io{1};
    tcp::acceptor acceptor{io};
    asio::steady_timer sweeper{io}, accept_again{io};
    std::string address;
    std::uint16_t port = 0;
    // Used only by the connection thread.
    std::set<std::shared_ptr<HttpConnection>> connections;
    // Connections per client; behind a trusted proxy requests.
    std::map<std::string, std::size_t> by_client;
    std::atomic<std::size_t> connection_count = 0;
    BodyBytes body_bytes{options.all_bodies};
    std::atomic<bool> draining = false;
    std::mutex count_mutex;
    std::condition_variable none_left;

    std::mutex woken_mutex;
    std::vector<std::shared_ptr<HttpConnection>> woken;
    std::vector<std::shared_ptr<HttpConnection>> pumped;  // only in pump_woken(); keeps its memory
    std::atomic<bool> wake_was_lost = false;              // of any connection

    std::mutex work_mutex;
    std::condition_variable work_there;
    // Long bodies take long to parse: they have their own queue, and one worker is left for the
    // others.
    Turns<HttpExchangePtr> requests, long_requests;
    int long_running = 0;
    bool leaving = false;
    std::vector<std::thread> threads;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
  public:
    // `client`: under which the connection and its bodies are counted.
    HttpConnection(std::shared_ptr<HttpHost> server, tcp::socket socket, HttpClient client)
        : server_(std::move(server)), socket_(std::move(socket)), client_(std::move(client)) {
        error_code ignored;
        socket_.set_option(tcp::no_delay(true), ignored);
        // Bytes that a client does not read wait here, where they are counted, not in the kernel.
        socket_.set_option(tcp::socket::send_buffer_size(128 << 10), ignored);
        const tcp::endpoint peer = socket_.remote_endpoint(ignored);
        peer_ = peer.address().to_string();
        wait_for_request();
    }

    void read();
    void pump();  // sends what the answer has
    void check(Clock::time_point now);
    void close() noexcept;
    void drain();  // accept nothing more
    // Runs a step of this connection: a call of a member above. An error in it ends only this
    // connection, such as an allocation that fails.
    template <class Step>
    void guarded(Step step) {
        try {
            step();
        } catch (const std::exception&) {
            close();
            hold_back_memory_again();
        }
    }
    HttpHost& server() { return *server_; }
    const std::string& client() const { return client_.name; }

  private:
    using Parser = http::request_parser<http::string_body>;

    void took(const error_code& problem, std::size_t count);
    void drop_ahead();
    void came_to_end();
    void half_closed();
    void parse();
    bool take_head();
    HttpRequest request_of_head() const;
    void refuse(int status, const std::string& problem);
    void answer_at_once(HttpReply reply, bool last = false);
    void begin(HttpRequest request, BodyBytes::Share body_bytes = {});
    void dispatch();
    void send();
    void sent();
    void finish();
    void linger();
    void wait_for_request() { deadline_ = Clock::now() + server_->options.idle; }
    void forget_request();  // what is read of it
    bool count_forwarded();
    void forget_forwarded() noexcept;
    void report(const HttpExchange& exchange, int status, bool whole) noexcept;

    const std::shared_ptr<HttpHost> server_;
    tcp::socket socket_;
    const HttpClient client_;
    std::string peer_;
    std::array<char, 8192> chunk_;
    std::string in_;  // read, not parsed
    std::optional<Parser> parser_;
    HttpRequest head_;
    bool has_head_ = false;
    std::string forwarded_;  // the client of the request, counted: behind a trusted proxy
    HttpExchangePtr current_;
    std::string sending_;
    std::size_t sent_ = 0;
    BodyBytes::Share body_bytes_;  // of the request that is being read
    bool reading_ = false, writing_ = false, lingering_ = false, closed_ = false, eof_ = false;
    bool broken_ = false;  // the following bytes are not a request
    Clock::time_point deadline_ = kNever, body_deadline_ = kNever, write_deadline_ = kNever;
    Clock::time_point ahead_deadline_ = kNever;  // for the requests behind the current one
};

}  // namespace mr::serve
