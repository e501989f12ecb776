#include "bench/serve/load.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>

#include "bench/serve/answer_reader.h"
#include "core/error.h"
#include "core/philox.h"
#include "formats/json_writer.h"

namespace mr::bench {
namespace {

using std::chrono::milliseconds;

// Streams of random numbers: arrivals, the shared prefix, and one for each prompt.
constexpr std::uint64_t kArrivals = 0, kPrefix = 1, kPrompts = 2;

constexpr std::array<const char*, 16> kWords{"river", "stone", "wheel", "water", "green", "house",
                                             "light", "paper", "night", "chair", "bread", "cloud",
                                             "table", "plant", "glass", "sound"};

double seconds_between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

Clock::duration of_seconds(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

struct Client {
    Wire wire;
    AnswerReader reader;
    std::string out;       // the request
    std::size_t sent = 0;  // bytes of it sent
    Clock::time_point start{}, heard{};
    bool busy = false;
};

class Load {
  public:
    Load(const Place& place, const LoadShape& shape, const LoadPlan& plan)
        : place_(place), shape_(shape), plan_(plan), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
        for (int i = 0; i < (plan.rate > 0 ? 1 : plan.clients); ++i) add_client();
        if (plan.rate > 0) draw_arrivals();
    }

    LoadMeasured run(const Progress& progress);

  private:
    Client& add_client();
    void connect(Client& client);
    void draw_arrivals();
    void start_due();
    void start(Client& client, Clock::time_point at);
    void send(Client& client);
    void read(Client& client);
    void end(Client& client);
    void fail(Client& client, const std::string& why);
    void over(Client& client);
    void watch(Client& client, int how, std::uint32_t events);
    int wait_ms() const;
    void look_for_silence();

    const Place& place_;
    const LoadShape& shape_;
    const LoadPlan& plan_;
    Wire epoll_;
    std::vector<std::unique_ptr<Client>> clients_;
    std::vector<double> arrivals_;  // seconds after the start, of an open loop
    Clock::time_point begin_{}, last_{};
    int started_ = 0, ended_ = 0;
    std::array<char, 1 << 16> buffer_;
    LoadMeasured out_;
};

Client& Load::add_client() {
    clients_.push_back(std::make_unique<Client>());
    connect(*clients_.back());
    return *clients_.back();
}

void Load::watch(Client& client, int how, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = &client;
    ::epoll_ctl(epoll_.fd(), how, client.wire.fd(), &event);
}

void Load::connect(Client& client) {
    client.wire = connect_to(place_);
    watch(client, EPOLL_CTL_ADD, EPOLLIN);
}

void Load::draw_arrivals() {
    double at = 0;
    for (int i = 0; i < plan_.requests; ++i) {
        const auto word = philox(shape_.seed, plan_.first + static_cast<unsigned>(i), kArrivals)[0];
        at -= std::log(1 - static_cast<double>(unit_float(word))) / plan_.rate;
        arrivals_.push_back(at);
    }
}

LoadMeasured Load::run(const Progress& progress) {
    begin_ = last_ = Clock::now();
    std::array<epoll_event, 256> events;
    Clock::time_point looked = begin_;
    while (ended_ < plan_.requests) {
        start_due();
        const int count = ::epoll_wait(epoll_.fd(), events.data(), events.size(), wait_ms());
        for (int i = 0; i < count; ++i) {
            Client& client = *static_cast<Client*>(events[static_cast<std::size_t>(i)].data.ptr);
            const std::uint32_t what = events[static_cast<std::size_t>(i)].events;
            if ((what & EPOLLOUT) != 0 && client.wire.open()) send(client);
            if ((what & ~std::uint32_t{EPOLLOUT}) != 0 && client.wire.open()) read(client);
        }
        if (Clock::now() - looked < milliseconds(100)) continue;
        looked = Clock::now();
        look_for_silence();
        if (progress) {
            progress("measuring", static_cast<std::uint64_t>(ended_),
                     static_cast<std::uint64_t>(plan_.requests));
        }
    }
    out_.seconds = seconds_between(begin_, last_);
    out_.requests = plan_.requests;
    return std::move(out_);
}

int Load::wait_ms() const {
    if (arrivals_.empty() || started_ == plan_.requests) return 100;
    const double left =
        arrivals_[static_cast<std::size_t>(started_)] - seconds_between(begin_, Clock::now());
    return static_cast<int>(std::clamp(1000 * left, 0.0, 100.0));  // rounded down: never late
}

void Load::start_due() {
    if (arrivals_.empty()) {
        for (const auto& client : clients_) {
            if (!client->busy && started_ < plan_.requests) start(*client, Clock::now());
        }
        return;
    }
    while (started_ < plan_.requests) {
        const auto at = begin_ + of_seconds(arrivals_[static_cast<std::size_t>(started_)]);
        if (at > Clock::now()) return;
        const auto free = std::find_if(clients_.begin(), clients_.end(),
                                       [](const auto& client) { return !client->busy; });
        if (free != clients_.end()) {
            start(**free, at);
            continue;
        }
        clients_.push_back(std::make_unique<Client>());
        start(*clients_.back(), at);
    }
}

void Load::start(Client& client, Clock::time_point at) {
    const std::uint64_t number = plan_.first + static_cast<std::uint64_t>(started_++);
    client.out = place_.request("/v1/completions", request_body(shape_, number));
    client.sent = 0;
    client.busy = true;
    client.reader.begin();
    try {
        if (!client.wire.stands()) {  // a client's first request, or the server has closed
            client.wire.close();
            connect(client);
        }
    } catch (const Error& error) {
        return fail(client, error.what());
    }
    // Making the prompt is not measured. The delay of an open loop is.
    client.start = client.heard = arrivals_.empty() ? Clock::now() : at;
    send(client);
}

void Load::send(Client& client) {
    while (client.sent < client.out.size()) {
        const ssize_t count = ::send(client.wire.fd(), client.out.data() + client.sent,
                                     client.out.size() - client.sent, MSG_NOSIGNAL);
        if (count >= 0) {
            client.sent += static_cast<std::size_t>(count);
        } else if (errno == EAGAIN) {
            return watch(client, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
        } else if (errno != EINTR) {
            return fail(client, fmt::format("cannot be sent: {}", std::strerror(errno)));
        }
    }
    watch(client, EPOLL_CTL_MOD, EPOLLIN);
}

void Load::read(Client& client) {
    const ssize_t count = ::recv(client.wire.fd(), buffer_.data(), buffer_.size(), 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    const Clock::time_point now = Clock::now();
    if (count <= 0) {
        client.reader.put_end();
        if (client.busy && client.reader.whole()) end(client);
        client.wire.close();
        if (client.busy) fail(client, "the connection ended before the answer did");
        return;
    }
    client.heard = now;
    if (!client.busy) return client.wire.close();  // no request was pending
    client.reader.put({buffer_.data(), static_cast<std::size_t>(count)}, now);
    if (client.reader.broken()) return fail(client, "the answer is not HTTP");
    if (client.reader.whole()) end(client);
}

void Load::end(Client& client) {
    const AnswerReader& reader = client.reader;
    const std::vector<Clock::time_point>& tokens = reader.tokens();
    if (!reader.keep_alive()) client.wire.close();
    if (reader.status() != 200) {
        return fail(client,
                    fmt::format("status {}: {}", reader.status(), error_words(reader.body())));
    }
    if (!reader.error().empty()) return fail(client, error_words(reader.error()));
    if (!reader.done() || tokens.empty()) {
        return fail(client, tokens.empty() ? "the answer has no stream of tokens"
                                           : "the stream ended without [DONE]");
    }
    const std::int64_t counted = reader.usage().completion_tokens;
    const std::int64_t made = counted >= 0 ? counted : static_cast<std::int64_t>(tokens.size());
    const std::int64_t asked = reader.usage().prompt_tokens;
    out_.input += asked >= 0 ? asked : shape_.input;
    out_.output += made;
    out_.first_token.push_back(seconds_between(client.start, tokens.front()));
    if (made > 1 && tokens.size() > 1) {
        out_.per_token.push_back(seconds_between(tokens.front(), tokens.back()) /
                                 static_cast<double>(made - 1));
    }
    for (std::size_t i = 1; i < tokens.size(); ++i) {
        out_.gaps.push_back(seconds_between(tokens[i - 1], tokens[i]));
    }
    over(client);
}

void Load::fail(Client& client, const std::string& why) {
    ++out_.failed;
    if (out_.failure.empty()) out_.failure = why;
    // The rest of the answer would be taken for the next one.
    if (!client.reader.whole()) client.wire.close();
    over(client);
}

void Load::over(Client& client) {
    client.busy = false;
    ++ended_;
    last_ = Clock::now();
}

void Load::look_for_silence() {
    const auto now = Clock::now();
    for (const auto& client : clients_) {
        if (client->busy && now - client->heard > plan_.silence) fail(*client, "no answer came");
    }
}

}  // namespace

std::vector<std::int32_t> prompt_ids(const LoadShape& shape, std::uint64_t number) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(shape.input));
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const bool shared = i < static_cast<std::size_t>(shape.shared_prefix);
        const auto words = philox(shape.seed, i / 4, shared ? kPrefix : kPrompts + number);
        ids[i] = static_cast<std::int32_t>(words[i % 4] % static_cast<std::uint64_t>(shape.vocab));
        if (ids[i] == shape.avoided) ids[i] = ids[i] == 0 ? 1 : 0;
    }
    return ids;
}

std::string request_body(const LoadShape& shape, std::uint64_t number) {
    const std::vector<std::int32_t> ids = prompt_ids(shape, number);
    formats::JsonWriter json;
    json.begin_object();
    if (!shape.model.empty()) json.member("model", shape.model);
    json.key("prompt");
    if (shape.text) {
        std::string text;
        for (const std::int32_t id : ids) {
            text += kWords[static_cast<std::size_t>(id) % kWords.size()];
            text += ' ';
        }
        text.pop_back();
        json.value(text);
    } else {
        std::string list = "[";
        for (const std::int32_t id : ids) fmt::format_to(std::back_inserter(list), "{},", id);
        list.back() = ']';
        json.raw(list);
    }
    json.member("max_tokens", shape.output).member("temperature", 0).member("ignore_eos", true);
    json.member("stream", true).key("stream_options").begin_object();
    json.member("include_usage", true).end_object();
    return json.end_object().take();
}

LoadMeasured run_load(const Place& place, const LoadShape& shape, const LoadPlan& plan,
                      const Progress& progress) {
    return Load(place, shape, plan).run(progress);
}

}  // namespace mr::bench
