// Limits on the cost of a template. Templates come with models from anywhere: one that would run
// forever, nest without end or fill the memory ends in an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace mr::text::jinja {

struct Limits {
    std::uint64_t steps = 10'000'000;  // nodes executed, items walked
    std::size_t made = 256u << 20;     // bytes of all intermediate strings
    std::size_t output = 32u << 20;    // bytes of the result
    int depth = 400;                   // nesting of expressions, statements and macros
};
inline constexpr int kMaxNesting = 200;     // nesting of a template's syntax
inline constexpr int kMaxValueDepth = 100;  // nesting of lists and mappings
inline constexpr std::size_t kMaxTemplateBytes = 1u << 20;

// A fault inside a template. template.cpp adds the
// template and the line, and throws an mr::Error.
struct Failure {
    std::string problem;
    bool refused = false;  // raised by the template's own raise_exception
};

class Budget {
  public:
    explicit Budget(const Limits& limits) : limits_(limits) {}

    const Limits& limits() const { return limits_; }
    void step(std::size_t count = 1) {
        steps_ += count;
        if (steps_ > limits_.steps) {
            throw Failure{"takes more than " + std::to_string(limits_.steps) + " steps"};
        }
    }
    // Call it before `count` values are made; they take some 100 bytes each.
    void hold(std::size_t count) { step(8 * count); }
    // Call it before the bytes are made.
    void make(std::size_t bytes) {
        if (bytes > limits_.made - made_) {
            throw Failure{"makes more than " + std::to_string(limits_.made) + " bytes of text"};
        }
        made_ += bytes;
        step(1 + bytes / 64);
    }

    // One level of nesting for its lifetime.
    class Level {
      public:
        explicit Level(Budget& budget) : budget_(budget) {
            if (++budget_.depth_ > budget_.limits_.depth) {
                --budget_.depth_;
                throw Failure{"nests deeper than " + std::to_string(budget_.limits_.depth) +
                              " levels"};
            }
        }
        ~Level() { --budget_.depth_; }
        Level(const Level&) = delete;
        Level& operator=(const Level&) = delete;

      private:
        Budget& budget_;
    };

  private:
    Limits limits_;
    std::uint64_t steps_ = 0;
    std::size_t made_ = 0;
    int depth_ = 0;
};

}  // namespace mr::text::jinja
