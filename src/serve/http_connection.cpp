// One connection: reads, parses, hands over requests, sends answers in order.
#include "serve/http_connection.h"

#include <fmt/format.h>

namespace mr::serve {
namespace {

constexpr std::chrono::milliseconds kLinger{2000};  // for the client to close its side
// Bytes of requests after the current one. Once as many wait, no more are read, for this long.
constexpr std::size_t kReadAhead = 64 << 10;
constexpr std::chrono::milliseconds kReadAheadWait{1000};

constexpr std::size_t kChunkFrame = 20;  // bytes: the line before a chunk, and its end

constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

int status_of(const error_code& problem) {
    if (problem == http::error::header_limit || problem == http::error::buffer_overflow) return 431;
    if (problem == http::error::body_limit) return 413;
    if (problem == http::error::bad_version) return 505;
    return 400;
}

std::string why(const error_code& problem, const HttpOptions& options) {
    if (problem == http::error::body_limit) {
        return fmt::format("the body of this request is larger than {} bytes; send less",
                           options.body_bytes);
    }
    return fmt::format("cannot read this request: {}", problem.message());
}

// Whether a header line is folded. Parsers disagree on what that means.
bool has_fold(std::string_view in) {
    const std::string_view head = in.substr(0, in.find("\r\n\r\n"));
    return head.find("\r\n ") != head.npos || head.find("\r\n\t") != head.npos;
}

}  // namespace

// ---- an exchange, on any thread ----------------------------------------------------------------

void HttpExchange::wake() {
    if (std::exchange(woken_, true)) return;
    connection_->server().wake(connection_);
}

void HttpExchange::add_head(const HttpReply& reply, std::optional<std::size_t> length) {
    status_ = reply.status;
    if (connection_->server().draining) keep_alive_ = false;
    if (!length && old_version_) keep_alive_ = false;  // the end of the connection ends the stream
    pending_ += head_text(
        reply, extra_, {.keep_alive = keep_alive_, .old_version = old_version_, .length = length});
}

void HttpExchange::reply(HttpReply reply) {
    const std::lock_guard lock(mutex_);
    if (ended_ || status_ != 0) return;
    add_head(reply, reply.body.size());
    if (!head_only_) pending_ += reply.body;
    ended_ = true;
    wake();
}

void HttpExchange::begin(HttpReply head) {
    const std::lock_guard lock(mutex_);
    if (ended_ || status_ != 0) return;
    add_head(head, std::nullopt);
    wake();
}

bool HttpExchange::write(std::string_view piece) {
    const std::lock_guard lock(mutex_);
    if (ended_ || gone_) return false;
    if (piece.empty() || head_only_) return true;
    if (pending_.size() + piece.size() > most_unread_) {
        overfull_ = ended_ = true;
        gone_ = true;
    } else {
        pending_.reserve(pending_.size() + piece.size() + kChunkFrame);  // all of it, or none
        old_version_ ? pending_.append(piece) : append_chunk(pending_, piece);
    }
    wake();
    return !gone_;
}

void HttpExchange::end() {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    if (!old_version_ && !head_only_) pending_ += "0\r\n\r\n";
    ended_ = true;
    wake();
}

void HttpExchange::cut() {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = cut_ = true;
    wake();
}

void HttpExchange::free_body() {
    std::string().swap(request_.body);
    body_bytes_.give_back();
}

// ---- a connection, on the server's thread ------------------------------------------------------

void HttpConnection::close() noexcept {
    if (std::exchange(closed_, true)) return;
    error_code ignored;
    socket_.close(ignored);
    forget_request();
    forget_forwarded();
    if (HttpExchangePtr current = std::exchange(current_, nullptr)) {
        current->set_gone();
        server_->take_from_workers(current);
        int status = 0;
        {
            const std::lock_guard lock(current->mutex_);
            current->ended_ = true;
            status = current->status_;
        }
        report(*current, status, false);
    }
    server_->remove(shared_from_this());
}

void HttpConnection::report(const HttpExchange& exchange, int status, bool whole) noexcept try {
    const std::chrono::duration<double> took = Clock::now() - exchange.start_;
    server_->handlers.done({exchange.request_, status, exchange.sent_, took.count(), whole});
} catch (const std::exception&) {
    // Without memory for it, the log lacks a line.
}

void HttpConnection::forget_request() {
    parser_.reset();
    body_bytes_.give_back();
}

void HttpConnection::check(Clock::time_point now) {
    if (writing_ && now > write_deadline_) return close();
    if (current_ && now > ahead_deadline_) drop_ahead();
    if (current_ || now <= deadline_) return;
    if (parser_ && !lingering_ && !broken_) {
        return refuse(408, "the request was not complete in time");
    }
    close();
}

void HttpConnection::drain() {
    if (current_ || lingering_) return;
    if (!parser_) return close();
    refuse(503, "the server is shutting down");  // the request is not complete
}

void HttpConnection::read() {
    if (reading_ || closed_ || eof_) return;
    if (current_ && in_.size() >= kReadAhead) {
        ahead_deadline_ = std::min(ahead_deadline_, Clock::now() + kReadAheadWait);
        return;
    }
    reading_ = true;
    socket_.async_read_some(asio::buffer(chunk_),
                            [self = shared_from_this()](const error_code& problem, std::size_t n) {
                                self->reading_ = false;
                                self->guarded([&] { self->took(problem, n); });
                            });
}

void HttpConnection::took(const error_code& problem, std::size_t count) {
    if (closed_) return;
    if (problem) {
        eof_ = true;
        return problem == asio::error::eof ? came_to_end() : close();
    }
    if (!lingering_ && !broken_) {
        in_.append(chunk_.data(), count);
        if (!current_) parse();
    }
    read();
}

// A long answer, and many requests behind it. Only a connection that is read shows that its client
// has left, so the requests are dropped, and the connection ends after the answer.
void HttpConnection::drop_ahead() {
    ahead_deadline_ = kNever;
    broken_ = true;
    std::string().swap(in_);
    {
        const std::lock_guard lock(current_->mutex_);
        current_->keep_alive_ = false;
    }
    read();
}

// The client will send nothing more.
void HttpConnection::came_to_end() {
    if (current_) return half_closed();
    if (!parser_ || lingering_) return close();
    refuse(400, "the request ends before it is complete");
}

// The client has closed its side: it either waits for its answers or has gone. A host whose client
// has gone answers bytes with a reset, so some are sent: those of the answer if it has begun, else
// a `100 Continue`, which clients skip. HTTP/1.0 has no such answer: there it counts as gone.
void HttpConnection::half_closed() {
    socket_.async_wait(tcp::socket::wait_error,
                       [self = shared_from_this()](const error_code& problem) {
                           if (!problem) self->close();
                       });
    if (writing_) return;
    {
        const std::lock_guard lock(current_->mutex_);
        if (current_->status_ != 0) return;
    }
    if (current_->old_version_) return current_->set_gone();
    sending_ = kContinue;
    send();
}

void HttpConnection::parse() {
    while (!closed_ && !current_ && !broken_ && !in_.empty()) {
        if (!parser_) {
            parser_.emplace();
            parser_->header_limit(static_cast<std::uint32_t>(server_->options.header_bytes));
            parser_->body_limit(server_->options.body_bytes);
            body_bytes_ = {server_->body_bytes, client_.name,
                           most_bodies_of_client(server_->options, client_.loopback)};
            has_head_ = false;
            const auto now = Clock::now();
            body_deadline_ = now + server_->options.request;
            deadline_ = std::min(now + server_->options.header, body_deadline_);
        }
        error_code problem;
        if (!has_head_ && has_fold(in_)) problem = http::error::bad_field;
        const std::size_t used = problem ? 0 : parser_->put(asio::buffer(in_), problem);
        in_.erase(0, used);
        if (problem == http::error::need_more) {
            problem = {};
            // Bytes that no body takes are a head, or the line or the trailer of a chunk.
            if (in_.size() > server_->options.header_bytes) problem = http::error::header_limit;
        }
        if (problem) return refuse(status_of(problem), why(problem, server_->options));
        if (parser_->is_header_done() && !std::exchange(has_head_, true) && !take_head()) return;
        if (has_head_) {
            deadline_ = body_deadline_;
            parser_->eager(true);
            if (const char* full = body_bytes_.grow(parser_->get().body().size())) {
                return refuse(503, full);
            }
        }
        if (parser_->is_done()) return dispatch();
        if (used == 0) return;
    }
}

HttpRequest HttpConnection::request_of_head() const {
    const auto& message = parser_->get();
    HttpRequest out;
    out.method = std::string(message.method_string());
    const std::string target(message.target());
    const std::size_t mark = target.find('?');
    out.path = target.substr(0, mark);
    if (mark != std::string::npos) out.query = target.substr(mark + 1);
    out.old_version = message.version() < 11;
    for (const auto& field : message) {
        out.headers.emplace_back(lower_case(std::string(field.name_string())),
                                 std::string(field.value()));
    }
    out.peer = forwarded_client(server_->options.trusted_proxies, peer_, out.headers);
    out.id = request_id(out.header("x-request-id"));
    return out;
}

// A proxy's connection has requests of many clients. Each is counted for its own client, and so are
// the bytes of its body. Returns whether there may be another one.
bool HttpConnection::count_forwarded() {
    const HttpOptions& options = server_->options;
    if (head_.peer == peer_) return true;  // nothing was forwarded
    const HttpClient client = http_client(head_.peer);
    body_bytes_ = {server_->body_bytes, client.name,
                   most_bodies_of_client(options, client.loopback)};
    if (server_->is_full(client)) return false;
    std::string name = client.name;
    ++server_->by_client[name];
    forwarded_ = std::move(name);
    return true;
}

void HttpConnection::forget_forwarded() noexcept {
    if (forwarded_.empty()) return;
    server_->count_less(forwarded_);
    forwarded_.clear();
}

// Returns whether to read the rest of the request.
bool HttpConnection::take_head() {
    head_ = request_of_head();
    if (const auto problem = problem_of_head(head_)) {
        refuse(problem->status, problem->text);
        return false;
    }
    if (!count_forwarded()) {
        refuse(503, kClientFull);
        return false;
    }
    if (auto refused = server_->handlers.admit(head_)) {
        answer_at_once(std::move(*refused));
        return false;
    }
    if (head_.old_version) return true;  // no Expect header there
    const std::string expect = lower_case(head_.header("expect"));
    if (!expect.empty() && expect != "100-continue") {
        refuse(417, "of expectations only '100-continue' is met");
        return false;
    }
    if (!expect.empty() && !parser_->is_done() && !writing_) {
        sending_ = kContinue;
        send();
    }
    return true;
}

void HttpConnection::refuse(int status, const std::string& problem) {
    if (!has_head_) head_ = parser_ ? request_of_head() : HttpRequest{};
    answer_at_once(server_->handlers.refuse(head_, status, problem), true);
}

// Answers before the request is complete. `last`: bytes after it cannot be trusted and are not
// read, e.g. because the end of the request is unknown.
void HttpConnection::answer_at_once(HttpReply reply, bool last) {
    if (head_.peer.empty()) head_.peer = peer_;
    const bool whole = parser_ && parser_->is_done() && !last;
    broken_ = !whole;
    begin(std::move(head_));
    if (!whole) current_->keep_alive_ = false;
    forget_request();
    current_->reply(std::move(reply));
}

void HttpConnection::begin(HttpRequest request, BodyBytes::Share body_bytes) {
    current_ = std::make_shared<HttpExchange>(shared_from_this(), std::move(request),
                                              std::move(body_bytes));
    if (current_->request_.id.empty()) current_->request_.id = request_id({});
    current_->extra_ = server_->handlers.extra(current_->request_);
    current_->extra_.emplace_back("X-Request-Id", current_->request_.id);
    current_->most_unread_ = server_->options.unread_bytes;
    current_->head_only_ = current_->request_.method == "HEAD";
    if (parser_ && has_head_) {
        current_->keep_alive_ = parser_->get().keep_alive();
        current_->old_version_ = parser_->get().version() < 11;
    }
    deadline_ = kNever;
}

void HttpConnection::dispatch() {
    HttpRequest request = std::move(head_);
    request.body = std::move(parser_->get().body());
    const bool quick =
        request.method == "GET" || request.method == "HEAD" || request.method == "OPTIONS";
    begin(std::move(request), std::move(body_bytes_));
    forget_request();
    if (quick) {
        server_->handle(current_);
    } else {
        server_->give_to_worker(current_);
    }
}

void HttpConnection::pump() {
    if (closed_ || !current_) return;
    bool ended = false, cut = false, overfull = false;
    {
        const std::lock_guard lock(current_->mutex_);
        current_->woken_ = false;
        overfull = current_->overfull_;
        if (!writing_ && !overfull) {
            sending_.swap(current_->pending_);  // empty, but keeps its memory
            ended = current_->ended_;
            cut = current_->cut_;
        }
    }
    if (overfull) return close();
    if (writing_) return;
    if (!sending_.empty()) return send();
    if (cut) return close();
    if (ended) finish();
}

void HttpConnection::send() {
    writing_ = true;
    write_deadline_ = Clock::now() + server_->options.stall;
    socket_.async_write_some(asio::buffer(sending_.data() + sent_, sending_.size() - sent_),
                             [self = shared_from_this()](const error_code& problem, std::size_t n) {
                                 self->writing_ = false;
                                 if (self->closed_) return;
                                 if (problem) return self->close();
                                 if (self->current_) self->current_->sent_ += n;
                                 self->sent_ += n;
                                 self->guarded([&] { self->sent(); });
                             });
}

void HttpConnection::sent() {
    if (sent_ < sending_.size()) return send();
    sending_.clear();
    sent_ = 0;
    pump();
}

// The answer is sent.
void HttpConnection::finish() {
    const HttpExchangePtr done = std::exchange(current_, nullptr);
    ahead_deadline_ = kNever;
    report(*done, done->status_, true);
    forget_forwarded();
    if (!done->keep_alive_ || server_->draining || broken_) return linger();
    wait_for_request();
    parse();
    if (eof_ && !current_) return came_to_end();
    read();
}

// Closing at once would discard data that the client has not read yet.
void HttpConnection::linger() {
    lingering_ = true;
    deadline_ = Clock::now() + kLinger;
    in_.clear();
    error_code problem;
    socket_.shutdown(tcp::socket::shutdown_send, problem);
    if (problem || eof_) return close();
    read();
}

}  // namespace mr::serve
