#include "bench/serve/answer_reader.h"

#include <algorithm>
#include <charconv>

namespace mr::bench {
namespace {

constexpr std::size_t kMostLine = 64 << 10, kMostBody = 64 << 10, kMostEvent = 4 << 20;

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\r')) text.remove_suffix(1);
    return text;
}

bool same_word(std::string_view a, std::string_view b) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [&](char x, char y) { return lower(x) == lower(y); });
}

// The text after the first `"key":` and its spaces; empty if there is none. Quotes inside a string
// are escaped, so no string can contain a key.
std::string_view value_of(std::string_view json, std::string_view key) {
    const std::size_t at = json.find(key);
    return at == std::string_view::npos ? std::string_view()
                                        : trimmed(json.substr(at + key.size()));
}

std::int64_t number_of(std::string_view json, std::string_view key) {
    const std::string_view value = value_of(json, key);
    std::int64_t out = -1;
    std::from_chars(value.data(), value.data() + value.size(), out);
    return out;
}

}  // namespace

EventLine read_event(std::string_view data) {
    EventLine out;
    data = trimmed(data);
    if (data == "[DONE]") {
        out.done = true;
        return out;
    }
    const std::string_view text = value_of(data, R"("text":)");
    if (text.size() >= 2 && text[0] == '"') {
        out.token = text[1] != '"' || value_of(data, R"("finish_reason":)").starts_with("null");
    } else {
        out.error = !value_of(data, R"("error":)").empty();
    }
    if (value_of(data, R"("usage":)").starts_with("{")) {
        out.prompt_tokens = number_of(data, R"("prompt_tokens":)");
        out.completion_tokens = number_of(data, R"("completion_tokens":)");
    }
    return out;
}

void AnswerReader::begin() { *this = AnswerReader(); }

std::size_t AnswerReader::put(std::string_view bytes, Clock::time_point now) {
    const std::size_t all = bytes.size();
    while (!bytes.empty() && !whole() && !broken()) {
        if (state_ == State::length || state_ == State::chunk) {
            const std::string_view part = bytes.substr(0, left_);
            bytes.remove_prefix(part.size());
            left_ -= part.size();
            put_body(part, now);
            if (left_ == 0) state_ = state_ == State::chunk ? State::chunk_end : State::whole;
        } else if (state_ == State::to_end) {
            put_body(bytes, now);
            bytes = {};
        } else if (take_line(bytes)) {
            if (state_ == State::head) {
                line_.empty() ? end_head() : take_head_line();
            } else if (state_ == State::chunk_size) {
                take_chunk_size();
            } else if (state_ == State::chunk_end) {
                state_ = line_.empty() ? State::chunk_size : State::broken;
            } else if (line_.empty()) {  // after the trailer
                state_ = State::whole;
            }
            line_.clear();
        }
    }
    return all - bytes.size();
}

void AnswerReader::put_end() {
    if (state_ == State::to_end) state_ = State::whole;
}

bool AnswerReader::take_line(std::string_view& bytes) {
    const std::size_t end = bytes.find('\n');
    line_ += bytes.substr(0, end);
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    if (line_.size() > kMostLine) state_ = State::broken;
    if (end == std::string_view::npos) return false;
    if (!line_.empty() && line_.back() == '\r') line_.pop_back();
    return true;
}

void AnswerReader::take_head_line() {
    const std::string_view line = line_;
    if (status_ == 0) {
        if (!line.starts_with("HTTP/1.") || line.size() < 12) {
            state_ = State::broken;
            return;
        }
        keep_alive_ = line[7] != '0';
        std::from_chars(line.data() + 9, line.data() + 12, status_);
        return;
    }
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    const std::string_view name = line.substr(0, colon), value = trimmed(line.substr(colon + 1));
    if (same_word(name, "content-length")) {
        has_length_ = true;
        std::from_chars(value.data(), value.data() + value.size(), left_);
    } else if (same_word(name, "transfer-encoding")) {
        chunked_ = same_word(value, "chunked");
    } else if (same_word(name, "connection")) {
        keep_alive_ = !same_word(value, "close");
    } else if (same_word(name, "content-type")) {
        events_ = same_word(value.substr(0, 17), "text/event-stream");
    }
}

void AnswerReader::end_head() {
    if (status_ == 0) {
        state_ = State::broken;
    } else if (status_ < 200) {  // 100: the final answer follows
        begin();
    } else if (chunked_) {
        state_ = State::chunk_size;
    } else if (has_length_) {
        state_ = left_ == 0 ? State::whole : State::length;
    } else {
        state_ = State::to_end;
        keep_alive_ = false;
    }
}

void AnswerReader::take_chunk_size() {
    const auto [end, error] = std::from_chars(line_.data(), line_.data() + line_.size(), left_, 16);
    if (error != std::errc()) {
        state_ = State::broken;
    } else {
        state_ = left_ == 0 ? State::trailer : State::chunk;
    }
}

void AnswerReader::put_body(std::string_view bytes, Clock::time_point now) {
    if (!events_ || status_ != 200) {
        body_ += bytes.substr(0, kMostBody - std::min(kMostBody, body_.size()));
        return;
    }
    while (!bytes.empty()) {
        const std::size_t end = bytes.find('\n');
        const std::string_view part = bytes.substr(0, end);
        bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
        if (end != std::string_view::npos && event_.empty()) {
            take_event(part, now);  // the usual case: a whole line, without a copy
            continue;
        }
        event_ += part;
        if (event_.size() > kMostEvent) state_ = State::broken;
        if (end == std::string_view::npos) return;
        take_event(event_, now);
        event_.clear();
    }
}

void AnswerReader::take_event(std::string_view line, Clock::time_point now) {
    if (!line.starts_with("data:")) return;
    const EventLine event = read_event(line.substr(5));
    if (event.token) tokens_.push_back(now);
    if (event.completion_tokens >= 0) usage_ = event;
    done_ |= event.done;
    if (event.error && error_.empty()) error_ = trimmed(line.substr(5));
}

}  // namespace mr::bench
