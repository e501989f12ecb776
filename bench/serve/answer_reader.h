// Parses answers of an HTTP server as bytes arrive, and the events of a stream in them. Events are
// counted without a JSON parser: a load generator must be cheaper than the server.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mr::bench {

using Clock = std::chrono::steady_clock;

// The content of one line of a completion stream.
struct EventLine {
    bool token = false;               // a piece of text, or a token whose text is not complete yet
    bool done = false;                // "[DONE]"
    bool error = false;               // an object with "error"
    std::int64_t prompt_tokens = -1;  // of "usage"; -1: none
    std::int64_t completion_tokens = -1;
};
// `data`: the text after "data:".
EventLine read_event(std::string_view data);

// Reads the answers of a kept-alive connection, one after another.
class AnswerReader {
  public:
    // Drops the last answer.
    void begin();
    // Bytes read at `now`. Returns how many of them belong to the answer.
    std::size_t put(std::string_view bytes, Clock::time_point now);
    // The server has closed the connection: the end of an answer without a length.
    void put_end();

    bool whole() const { return state_ == State::whole; }
    bool broken() const { return state_ == State::broken; }  // not HTTP
    int status() const { return status_; }
    bool keep_alive() const { return keep_alive_; }
    // The body, if it is not a stream of events; its first 64 KiB.
    const std::string& body() const { return body_; }

    // For a stream: arrival times of lines with a token, and the content of the last lines.
    const std::vector<Clock::time_point>& tokens() const { return tokens_; }
    const EventLine& usage() const { return usage_; }
    bool done() const { return done_; }
    const std::string& error() const { return error_; }  // the event with the error

  private:
    enum class State { head, length, chunk_size, chunk, chunk_end, trailer, to_end, whole, broken };

    bool take_line(std::string_view& bytes);  // into line_, without its end; false: incomplete
    void take_head_line();
    void end_head();
    void take_chunk_size();
    void put_body(std::string_view bytes, Clock::time_point now);
    void take_event(std::string_view line, Clock::time_point now);

    State state_ = State::head;
    std::string line_;  // of the head, or a chunk's size, read so far
    bool line_whole_ = false;
    int status_ = 0;
    bool keep_alive_ = true, chunked_ = false, events_ = false;
    std::uint64_t left_ = 0;  // remaining bytes of the body or the chunk
    bool has_length_ = false;
    std::string body_, event_;
    std::vector<Clock::time_point> tokens_;
    EventLine usage_;
    bool done_ = false;
    std::string error_;
};

}  // namespace mr::bench
