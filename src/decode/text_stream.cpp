#include "decode/text_stream.h"

#include <algorithm>
#include <utility>

namespace mr::decode {

TextStream::TextStream(const text::Tokenizer& tokenizer, std::vector<std::string> stops,
                       bool at_start, Shown shown)
    : decoder_(tokenizer, {.skip_special = !shown.special, .at_start = at_start}),
      stops_(std::move(stops)),
      shows_stop_(shown.stop) {
    std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string TextStream::push(std::int32_t token, bool heed) {
    if (stopped_) return {};
    heeded_ = heed;
    return filter(decoder_.push(token), heed);
}

std::string TextStream::finish() {
    if (stopped_) return {};
    std::string text = filter(decoder_.flush(), heeded_);
    if (!stopped_) text += std::exchange(held_, {});
    return text;
}

std::string TextStream::filter(std::string_view text, bool heed) {
    // A stop string that ends in what was held back was not heeded when it was completed.
    const std::size_t before = held_.size();
    held_ += text;
    std::size_t found = std::string::npos;
    for (const std::string& stop : stops_) {
        const std::size_t at =
            heed ? held_.find(stop, before + 1 - std::min(before + 1, stop.size())) : found;
        if (at >= found) continue;
        found = at;
        stopped_by_ = stop;
    }
    if (found != std::string::npos) {
        stopped_ = true;
        held_.resize(found + (shows_stop_ ? stopped_by_.size() : 0));
        return std::exchange(held_, {});
    }
    // Hold back the longest suffix of the text that is a prefix of a stop string.
    std::size_t keep = 0;
    for (const std::string& stop : stops_) {
        for (std::size_t n = std::min(held_.size(), stop.size() - 1); n > keep; --n) {
            if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
        }
    }
    std::string out = held_.substr(0, held_.size() - keep);
    held_.erase(0, out.size());
    return out;
}

}  // namespace mr::decode
