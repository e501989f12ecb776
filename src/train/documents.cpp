#include "train/documents.h"

#include <algorithm>

#include "core/error.h"

namespace mr::train {
namespace {

constexpr std::uint64_t kPart = 1 << 18;                   // tokens that are read at a time
constexpr std::uint64_t kGoesOn = std::uint64_t{1} << 63;  // a window begins inside of a document

// Computes the starts of windows, document by document.
class Cutter {
  public:
    // `lead`: tokens put before each document's own.
    Cutter(std::int64_t seq, std::int64_t block, std::uint64_t lead,
           std::vector<std::uint64_t>& starts)
        : seq_(static_cast<std::uint64_t>(seq)),
          block_(static_cast<std::uint64_t>(block)),
          lead_(lead),
          starts_(starts) {}

    // Adds a document of `tokens` tokens, its end token included, starting at `first`.
    void add(std::uint64_t first, std::uint64_t tokens) {
        std::uint64_t lead = lead_, flag = 0;
        for (;;) {
            if (filled_ == 0) start_ = first | flag;
            const std::uint64_t filled = (lead + tokens + block_ - 1) / block_ * block_;
            if (filled_ + filled <= seq_) {
                filled_ += filled;
                if (filled_ == seq_) close();
                return;
            }
            const bool goes_on = filled_ == 0;
            close();
            if (!goes_on) continue;  // once more, as the first document of a window
            first += seq_ - lead;
            tokens -= seq_ - lead;
            lead = 0;
            flag = kGoesOn;
        }
    }

  private:
    void close() {
        starts_.push_back(start_);
        filled_ = 0;
    }

    std::uint64_t seq_, block_, lead_;
    std::vector<std::uint64_t>& starts_;
    std::uint64_t start_ = 0, filled_ = 0;
};

}  // namespace

DocumentWindows::DocumentWindows(const Shards& shards, std::int64_t seq, std::int64_t block,
                                 std::int32_t end, std::optional<std::int32_t> begin)
    : shards_(&shards), seq_(seq), block_(block), end_(end), begin_(begin) {
    MR_CHECK(block > 0 && seq > 1 && seq % block == 0, "windows of whole blocks");
    Cutter cutter(seq, block, begin ? 1 : 0, starts_);
    std::vector<std::int32_t> part;
    std::uint64_t first = 0;  // start of the document
    for (std::uint64_t at = 0; at < shards.tokens(); at += part.size()) {
        part.resize(static_cast<std::size_t>(std::min(kPart, shards.tokens() - at)));
        shards.read(at, part);
        for (std::size_t i = 0; i < part.size(); ++i) {
            if (part[i] != end_) continue;
            const std::uint64_t next = at + i + 1;
            if (next - first > 1) cutter.add(first, next - first);
            first = next;
        }
    }
    if (first < shards.tokens()) cutter.add(first, shards.tokens() - first);
}

void DocumentWindows::read(std::uint64_t window, std::span<std::int32_t> ids) const {
    MR_CHECK(window < count() && static_cast<std::int64_t>(ids.size()) == seq_,
             "a window that is there, as [seq]");
    const auto block = static_cast<std::size_t>(block_);
    const std::uint64_t start = starts_[static_cast<std::size_t>(window)];
    std::uint64_t at = start & ~kGoesOn;
    bool ended = start < kGoesOn;  // a document begins with the next token
    std::vector<std::int32_t> part(ids.size());
    std::size_t filled = 0, next = part.size();
    while (filled < ids.size()) {
        if (next == part.size()) {
            const std::uint64_t left = shards_->tokens() - at;
            if (left == 0) break;  // the last document has no end token
            part.resize(static_cast<std::size_t>(std::min<std::uint64_t>(part.size(), left)));
            shards_->read(at, part);
            at += part.size();
            next = 0;
        }
        const std::int32_t id = part[next++];
        if (ended && id == end_) continue;  // skips an empty document
        if (ended && begin_) ids[filled++] = ~*begin_;
        ended = id == end_;
        if (filled < ids.size()) ids[filled++] = id;  // else `first` filled the block
        while (ended && filled % block != 0) ids[filled++] = end_;
    }
    std::fill(ids.begin() + static_cast<std::ptrdiff_t>(filled), ids.end(), end_);
}

}  // namespace mr::train
