// Answers of an HTTP server, byte by byte as they are read, and the events of a stream in them.
// Events are counted without a JSON parser: a load generator must be cheaper than what it measures.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mr::bench {

using Clock = std::chrono::steady_clock;

// What one line of a stream of completions says.
struct EventLine {
    bool token = false;               // a piece of text, or a token whose text is not whole yet
    bool done = false;                // "[DONE]"
    bool error = false;               // an object with "error"
    std::int64_t prompt_tokens = -1;  // of "usage"; -1: it has none
    std::int64_t completion_tokens = -1;
};
// `data`: what follows "data:".
EventLine read_event(std::string_view data);

// One answer after another of a connection that is kept.
class AnswerReader {
  public:
    // Forgets the last answer.
    void begin();
    // Bytes that were read at `now`. Returns how many of them belong to the answer.
    std::size_t put(std::string_view bytes, Clock::time_point now);
    // The server has closed: the end of an answer without a length.
    void put_end();

    bool whole() const { return state_ == State::whole; }
    bool broken() const { return state_ == State::broken; }  // this is no HTTP
    int status() const { return status_; }
    bool keep_alive() const { return keep_alive_; }
    // The body, where it is no stream of events; its first 64 KiB.
    const std::string& body() const { return body_; }

    // Of a stream: when lines with a token came, and what the last lines said.
    const std::vector<Clock::time_point>& tokens() const { return tokens_; }
    const EventLine& usage() const { return usage_; }
    bool done() const { return done_; }
    const std::string& error() const { return error_; }  // the event that said so

  private:
    enum class State { head, length, chunk_size, chunk, chunk_end, trailer, to_end, whole, broken };

    bool take_line(std::string_view& bytes);  // into line_, without its end; false: not all of it
    void take_head_line();
    void end_head();
    void take_chunk_size();
    void put_body(std::string_view bytes, Clock::time_point now);
    void take_event(std::string_view line, Clock::time_point now);

    State state_ = State::head;
    std::string line_;  // of the head, or a chunk's size, as far as it came
    bool line_whole_ = false;
    int status_ = 0;
    bool keep_alive_ = true, chunked_ = false, events_ = false;
    std::uint64_t left_ = 0;  // bytes of the body or the chunk
    bool has_length_ = false;
    std::string body_, event_;
    std::vector<Clock::time_point> tokens_;
    EventLine usage_;
    bool done_ = false;
    std::string error_;
};

}  // namespace mr::bench
