// One thread serves all connections; requests with a body are handled by a few workers.
// Boost.Asio provides the sockets and Boost.Beast the parser; answers are written as text
// (http_text.cpp).
#include "serve/http.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>

#include "core/error.h"
#include "core/start_thread.h"
#include "serve/http_connection.h"

namespace mr::serve {
namespace {

constexpr std::chrono::milliseconds kSweep{200};       // how often deadlines are checked
constexpr std::chrono::milliseconds kAcceptAgain{50};  // retry after running out of descriptors
constexpr std::chrono::milliseconds kServeAgain{10};   // retry after running out of memory

constexpr std::size_t kLongBody = 256 << 10;

// Raises the limit of descriptors above the usual 1,024, if the system allows it.
void raise_descriptor_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 65536);
    ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Returns the memory of a long body to the system. By default glibc would keep more with every such
// body: it raises its own threshold for mmap.
void give_long_bodies_back() {
#ifdef __GLIBC__
    ::mallopt(M_MMAP_THRESHOLD, static_cast<int>(kLongBody));
#endif
}

}  // namespace

std::size_t most_of_client(const HttpOptions& options, bool loopback) {
    if (options.connections_per_client > 0) return options.connections_per_client;
    return loopback ? options.connections : std::max<std::size_t>(options.connections / 4, 1);
}

std::size_t most_bodies_of_client(const HttpOptions& options, bool loopback) {
    if (options.bodies_per_client > 0) return options.bodies_per_client;
    return loopback ? options.all_bodies : std::max(options.all_bodies / 4, options.body_bytes);
}

void HttpHost::listen() {
    const std::string where = fmt::format("{} port {}", options.host, options.port);
    error_code problem;
    const auto require = [&](const char* remedy) {
        if (!problem) return;
        throw Error::input({.field = "--host",
                            .value = where,
                            .problem = fmt::format("cannot listen there: {}", problem.message()),
                            .remedy = remedy});
    };
    const std::string name = options.host == "localhost" ? "127.0.0.1" : options.host;
    const asio::ip::address at = asio::ip::make_address(name, problem);
    constexpr const char* kGiveAddress =
        "give an address of this machine, such as 127.0.0.1, 0.0.0.0 or ::1";
    require(kGiveAddress);
    const tcp::endpoint endpoint(at, options.port);
    acceptor.open(endpoint.protocol(), problem);
    if (!problem) acceptor.set_option(tcp::acceptor::reuse_address(true), problem);
    if (!problem) acceptor.bind(endpoint, problem);
    if (!problem) acceptor.listen(1024, problem);
    require(problem == asio::error::address_in_use || problem == asio::error::access_denied
                ? "choose another --port, or 0 for one that is free"
                : kGiveAddress);
    address = at.is_v6() ? fmt::format("[{}]", at.to_string()) : at.to_string();
    port = acceptor.local_endpoint().port();
}

void HttpHost::start() {
    // Reserved first: push_back() must not throw once a thread runs.
    threads.reserve(static_cast<std::size_t>(options.workers) + 1);
    threads.push_back(start_thread([this] { serve(); }, "for connections"));
    for (int i = 0; i < options.workers; ++i) {
        threads.push_back(start_thread([this] { work(); }, "for requests"));
    }
}

// The steps of a connection handle their own errors. One that arrives here has interrupted accept()
// or sweep(), so both begin anew.
void HttpHost::serve() {
    for (;;) {
        try {
            accept();
            sweep();
            io.run();
            return;
        } catch (const std::exception&) {
            error_code ignored;
            acceptor.cancel(ignored);
            accept_again.cancel();
            hold_back_memory_again();
            std::this_thread::sleep_for(kServeAgain);
        }
    }
}

void HttpHost::accept() {
    acceptor.async_accept([this](const error_code& problem, tcp::socket socket) {
        if (problem == asio::error::operation_aborted || !acceptor.is_open()) return;
        if (problem) {  // no descriptor left, or the client has disconnected
            accept_again.expires_after(kAcceptAgain);
            accept_again.async_wait([this](const error_code& ended) {
                if (!ended && acceptor.is_open()) accept();
            });
            return;
        }
        take(std::move(socket));
        accept();
    });
}

void HttpHost::take(tcp::socket socket) {
    error_code left;
    const asio::ip::address peer = socket.remote_endpoint(left).address();
    const HttpClient client = http_client(peer.to_string());
    const bool proxy = is_proxy(options.trusted_proxies, peer.to_string());
    const bool all_full = connections.size() >= options.connections;
    if (all_full || (!proxy && is_full(client))) {
        const HttpReply full = handlers.refuse(
            {}, 503, all_full ? "there are as many connections as may be" : kClientFull);
        const std::string text =
            head_text(full, {}, {.keep_alive = false, .length = full.body.size()}) + full.body;
        error_code ignored;
        socket.non_blocking(true, ignored);
        socket.write_some(asio::buffer(text), ignored);
        return;
    }
    auto connection =
        std::make_shared<HttpConnection>(shared_from_this(), std::move(socket), client);
    std::size_t& counted = by_client[client.name];
    connections.insert(connection);
    ++counted;
    connection_count = connections.size();
    connection->guarded([&] { connection->read(); });
}

void HttpHost::sweep() {
    sweeper.expires_after(kSweep);
    sweeper.async_wait([this](const error_code& ended) {
        if (ended) return;
        const auto now = Clock::now();
        const auto all = all_connections();
        const bool wake_all = wake_was_lost.exchange(false);
        if (wake_all) pump_woken();
        for (const auto& connection : all) {
            connection->guarded([&] {
                connection->check(now);
                if (draining) connection->drain();  // again, if memory ran out the first time
                if (wake_all) connection->pump();
            });
        }
        sweep();
    });
}

bool HttpHost::is_full(const HttpClient& client) const {
    const auto known = by_client.find(client.name);
    const std::size_t own = known == by_client.end() ? 0 : known->second;
    return own >= most_of_client(options, client.loopback);
}

void HttpHost::count_less(const std::string& client) {
    const auto own = by_client.find(client);
    MR_CHECK(own != by_client.end(), "a connection or a forwarded request was counted");
    if (--own->second == 0) by_client.erase(own);
}

void HttpHost::remove(const std::shared_ptr<HttpConnection>& connection) {
    if (connections.erase(connection) > 0) count_less(connection->client());
    const std::lock_guard lock(count_mutex);
    connection_count = connections.size();
    if (connections.empty()) none_left.notify_all();
}

void HttpHost::wake(const std::shared_ptr<HttpConnection>& connection) noexcept try {
    {
        const std::lock_guard lock(woken_mutex);
        woken.push_back(connection);
        if (woken.size() > 1) return;
    }
    asio::post(io, [this] { pump_woken(); });
} catch (const std::exception&) {
    wake_was_lost = true;
}

void HttpHost::pump_woken() {
    {
        const std::lock_guard lock(woken_mutex);
        pumped.swap(woken);
    }
    for (const auto& one : pumped) one->guarded([&] { one->pump(); });
    pumped.clear();
}

void HttpHost::give_to_worker(HttpExchangePtr exchange) {
    const HttpRequest& request = exchange->request();
    const std::string client =
        handlers.client ? handlers.client(request) : http_client(request.peer).name;
    {
        const std::lock_guard lock(work_mutex);
        const bool is_long = request.body.size() > kLongBody;
        (is_long ? long_requests : requests).put(client, {std::move(exchange)});
    }
    work_there.notify_one();
}

void HttpHost::take_from_workers(const HttpExchangePtr& exchange) {
    const std::lock_guard lock(work_mutex);
    for (auto* const turns : {&requests, &long_requests}) {
        turns->erase_if([&](const HttpExchangePtr& other) { return other == exchange; });
    }
}

void HttpHost::work() {
    const int most_long = std::max(options.workers - 1, 1);
    for (;;) {
        HttpExchangePtr exchange;
        bool is_long = false;
        {
            std::unique_lock lock(work_mutex);
            work_there.wait(lock, [&] {
                is_long = !long_requests.empty() && long_running < most_long;
                return leaving || is_long || !requests.empty();
            });
            if (leaving) return;
            exchange = *(is_long ? long_requests : requests).take();
            long_running += is_long;
        }
        if (exchange->gone()) {
            exchange->cut();
        } else {
            handle(exchange);
        }
        if (!is_long) continue;
        const std::lock_guard lock(work_mutex);
        --long_running;
        work_there.notify_one();
    }
}

void HttpHost::handle(const HttpExchangePtr& exchange) {
    try {
        call_handler(exchange);
    } catch (const std::exception&) {  // no memory for a refusal
        exchange->cut();
    }
    exchange->free_body();
}

void HttpHost::call_handler(const HttpExchangePtr& exchange) {
    // If all handlers drop it, there is no answer: its connection ends.
    const ExchangePtr handed(exchange.get(), [exchange](Exchange*) { exchange->cut(); });
    try {
        handlers.handle(handed);
    } catch (const std::exception& error) {
        const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
        if (memory) hold_back_memory_again();
        exchange->reply(
            handlers.refuse(exchange->request(), 500, memory ? "out of memory" : error.what()));
        exchange->cut();  // if an answer had begun
    }
}

// Operations that were cut hold their connection, which holds this host: they are freed by running
// their handlers.
void HttpHost::close_all() noexcept try {
    error_code ignored;
    acceptor.close(ignored);
    for (const auto& connection : std::exchange(connections, {})) connection->close();
    io.restart();
    io.poll();
} catch (const std::exception&) {
    // Without memory some are not freed.
}

HttpServer::HttpServer(HttpOptions options) {
    options.trusted_proxies = proxy_addresses(options.trusted_proxies);
    impl_ = std::make_shared<HttpHost>(options);
    raise_descriptor_limit();
    give_long_bodies_back();
    impl_->listen();
}

void HttpServer::start(HttpHandlers handlers) {
    impl_->handlers = std::move(handlers);
    impl_->start();
}

HttpServer::~HttpServer() {
    HttpHost& host = *impl_;
    {
        const std::lock_guard lock(host.work_mutex);
        host.leaving = true;
    }
    host.work_there.notify_all();
    try {
        asio::post(host.io, [&host] { host.io.stop(); });  // after what is ready
    } catch (const std::bad_alloc&) {
        host.io.stop();
    }
    // The first thread has the connections. Workers may wait until their clients have gone.
    if (!host.threads.empty()) host.threads.front().join();
    host.close_all();
    for (std::thread& thread : host.threads) {
        if (thread.joinable()) thread.join();
    }
    host.requests = host.long_requests = {};
    host.woken.clear();  // connections hold their owner
}

const std::string& HttpServer::address() const { return impl_->address; }
std::uint16_t HttpServer::port() const { return impl_->port; }
std::size_t HttpServer::connections() const { return impl_->connection_count; }

void HttpServer::drain() {
    impl_->draining = true;
    asio::post(impl_->io, [impl = impl_] {
        error_code ignored;
        impl->acceptor.close(ignored);
        for (const auto& connection : impl->all_connections()) {
            connection->guarded([&] { connection->drain(); });
        }
    });
}

bool HttpServer::wait_drained(std::chrono::milliseconds most) {
    std::unique_lock lock(impl_->count_mutex);
    return impl_->none_left.wait_for(lock, most, [&] { return impl_->connection_count == 0; });
}

}  // namespace mr::serve
