// How many tokens of prompts a pass may have beside rows that decode, by the clock: as many as keep
// it within some 2.2 times what a pass takes that only decodes. The longest gaps between tokens are
// then within 2.5 times the usual ones, whatever the model, the machine and the number of rows.
// Where a prompt is cut changes no bits, so the clock may decide it.
#pragma once

#include <cstdint>
#include <deque>

namespace mr::decode {

class PieceBudget {
  public:
    // `least`: tokens of the smallest piece; `most`: of a pass.
    PieceBudget(std::int64_t first, std::int64_t least, std::int64_t most);

    // Tokens of prompts for the next pass, which decodes `rows` rows; 0 now and then, to see how
    // long it takes without them.
    std::int64_t tokens(std::int64_t rows) const;
    // A pass was launched, with so many rows and tokens of prompts. All but the last `flying` have
    // ended by now, `seconds` after the last call.
    void launched(std::int64_t rows, std::int64_t prompt, std::size_t flying, double seconds);

    static constexpr double kTarget = 2.2;  // of a pass that only decodes
    static constexpr int kMostMixed = 16;   // passes with prompts in a row

  private:
    struct Pass {
        std::int64_t rows = 0, prompt = 0, budget = 0;
    };
    void took(const Pass& pass, double seconds);

    const std::int64_t least_, most_;
    std::int64_t budget_;
    double decode_ = 0;        // seconds of a pass that only decodes, lately; 0: not known
    int mixed_ = 0;            // passes with prompts since one without
    std::deque<Pass> flying_;  // the oldest first
};

}  // namespace mr::decode
