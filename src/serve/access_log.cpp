#include "serve/access_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>

#include "core/printable.h"
#include "core/start_thread.h"
#include "formats/json_writer.h"

namespace mr::serve {
namespace {

// What a client wrote is cut to this in the log, in bytes.
constexpr std::size_t kMostPath = 200;
constexpr std::size_t kMostMethod = 20;

}  // namespace

std::string log_time() {
    const auto now =
        std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
    const std::time_t second = std::chrono::system_clock::to_time_t(now);
    return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(second),
                       now.time_since_epoch().count() % 1000);
}

std::string json_note(std::string_view kind, std::string_view text, std::string_view time) {
    formats::JsonWriter json;
    json.begin_object().member("time", time).key(kind).value(text).end_object();
    return json.take() + "\n";
}

std::string note_line(std::string_view text, AccessLog::Kind kind, std::string_view time) {
    return kind == AccessLog::Kind::json ? json_note("note", text, time)
                                         : fmt::format("note: {}\n", text);
}

std::string access_line(const Access& access, AccessLog::Kind kind, std::string_view time) {
    const HttpRequest& request = access.request;
    if (kind == AccessLog::Kind::json) {
        formats::JsonWriter json;
        json.begin_object().member("time", time).member("peer", request.peer);
        json.member("method", printable(request.method, kMostMethod));
        json.member("path", printable(request.path, kMostPath));
        json.member("status", access.status).member("bytes", access.bytes);
        json.member("seconds", access.seconds).member("whole", access.whole);
        json.member("request_id", request.id).end_object();
        return json.take() + "\n";
    }
    return fmt::format("{} {} {} {} {} {} bytes {:.3f} s{} {}\n", time, request.peer,
                       printable(request.method, kMostMethod), printable(request.path, kMostPath),
                       access.status, access.bytes, access.seconds, access.whole ? "" : " cut",
                       request.id);
}

AccessLog::AccessLog(Kind kind, Write write) : kind_(kind) {
    if (kind == Kind::none) return;
    // Detached, since it may hang in a write forever; it refers to nothing of this object.
    start_thread([state = state_, write = std::move(write), kind] { run(state, write, kind); },
                 "for the access log")
        .detach();
}

AccessLog::~AccessLog() {
    std::unique_lock lock(state_->mutex);
    state_->leaving = true;
    state_->changed.notify_all();
    if (kind_ == Kind::none) return;
    state_->changed.wait_for(lock, std::chrono::seconds(1), [&] { return state_->ended; });
}

void AccessLog::add(const Access& access) {
    if (kind_ == Kind::none) return;
    put(access_line(access, kind_, log_time()));
}

void AccessLog::note(std::string_view text) {
    if (kind_ == Kind::none) return;
    put(note_line(text, kind_, log_time()));
}

void AccessLog::put(std::string line) {
    const std::lock_guard lock(state_->mutex);
    if (state_->lines.size() >= kMost) {
        ++state_->dropped;
        return;
    }
    state_->lines.push_back(std::move(line));
    state_->changed.notify_all();
}

void AccessLog::run(const std::shared_ptr<State>& state, const Write& write, Kind kind) {
    std::unique_lock lock(state->mutex);
    for (;;) {
        state->changed.wait(lock, [&] { return state->leaving || !state->lines.empty(); });
        if (state->lines.empty()) break;
        std::string text;
        try {
            for (const std::string& line : state->lines) text += line;
            if (state->dropped > 0) {
                text += note_line(
                    fmt::format("{} lines of the access log were dropped", state->dropped), kind,
                    log_time());
            }
            state->dropped = 0;
        } catch (const std::bad_alloc&) {
            state->dropped += state->lines.size();
            text.clear();
        }
        state->lines.clear();
        lock.unlock();
        write(text);
        lock.lock();
    }
    state->ended = true;
    state->changed.notify_all();
}

}  // namespace mr::serve
