#include "decode/piece_budget.h"

#include <algorithm>

namespace mr::decode {

PieceBudget::PieceBudget(std::int64_t first, std::int64_t least, std::int64_t most)
    : least_(least), most_(most), budget_(std::clamp(first, least, most)) {}

std::int64_t PieceBudget::tokens(std::int64_t rows) const {
    if (rows == 0) return most_;
    return mixed_ >= kMostMixed ? 0 : budget_;
}

void PieceBudget::launched(std::int64_t rows, std::int64_t prompt, std::size_t flying,
                           double seconds) {
    mixed_ = prompt > 0 && rows > 0 ? mixed_ + 1 : 0;
    flying_.push_back({rows, prompt, budget_});
    const std::size_t ended = flying_.size() - std::min(flying, flying_.size());
    // Where several have ended at once, the time is none of theirs.
    if (ended == 1) took(flying_.front(), seconds);
    flying_.erase(flying_.begin(), flying_.begin() + static_cast<std::ptrdiff_t>(ended));
}

void PieceBudget::took(const Pass& pass, double seconds) {
    if (pass.rows == 0) return;
    if (pass.prompt == 0) {
        constexpr double kNew = 0.25;
        decode_ = decode_ == 0 ? seconds : (1 - kNew) * decode_ + kNew * seconds;
        return;
    }
    // What was launched before the budget changed says nothing of it, and what was shorter than
    // half of it too little.
    if (decode_ == 0 || pass.budget != budget_ || 2 * pass.prompt < budget_) return;
    const double beside = std::max(seconds - decode_, 1e-3 * decode_);
    const double wanted = static_cast<double>(pass.prompt) * (kTarget - 1) * decode_ / beside;
    const auto most = static_cast<double>(std::min(2 * budget_, most_));
    budget_ = std::max(least_, static_cast<std::int64_t>(std::min(wanted, most)));
}

}  // namespace mr::decode
