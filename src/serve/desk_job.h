// Declarations shared by desk.cpp and desk_embed.cpp.
#pragma once

#include <exception>
#include <optional>

#include "decode/open_sequence.h"
#include "serve/desk.h"

namespace mr::serve {

// The failure to report to the client whose request caused an exception.
Failure failure_of(const std::exception_ptr& error);

struct Desk::Job {
    std::vector<Work> works;
    std::shared_ptr<Sink> sink;
    Clock::time_point arrived = Clock::now();
    Clock::time_point deadline = Clock::time_point::max();
    int left = 0;       // choices that have not ended
    bool over = false;  // it has failed, or its client has disconnected: the rest is cancelled

    bool late() const { return deadline != Clock::time_point::max() && Clock::now() > deadline; }
    bool wants_no_more() const { return over || sink->gone() || late(); }
};

// Texts to embed between the scheduler's passes, a piece at a time.
struct Desk::Embedding {
    std::string client;
    std::vector<std::vector<std::int32_t>> texts;
    bool last = false;  // use the last token instead of the mean
    std::shared_ptr<VectorSink> sink;
    Clock::time_point deadline = Clock::time_point::max();

    std::optional<decode::OpenSequence> sequence;  // of the current text
    std::int64_t done = 0;                         // its tokens done so far
    std::vector<double> sum;                       // [dim]
    std::vector<std::vector<float>> vectors;
};

}  // namespace mr::serve
