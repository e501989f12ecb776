// Windows of whole documents, for models that fill in blocks: a document begins at a block's begin
// and is filled with end tokens to the end of its last block, so that its end, and nothing else, is
// what a block's rest says. The packed data stays as it is.
//
// A window begins with a document, as texts do that a model writes: it has the documents after it
// that there is room for, and the last one is cut. The next window begins with the one that was
// cut, from its beginning; a document longer than a window goes on in the next one instead.
// Documents without tokens are left out, and so is what fills no window at the end of a split.
//
// Where the tokenizer has a beginning-of-text token, every document begins with it, as a prompt
// does and a text that is evaluated. It is given, never to be filled in: ids have it as ~id.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "train/shards.h"

namespace mr::train {

class DocumentWindows {
  public:
    // Reads all of the shards, which must outlive this. `seq` is a multiple of `block`.
    DocumentWindows(const Shards& shards, std::int64_t seq, std::int64_t block, std::int32_t end,
                    std::optional<std::int32_t> begin = {});

    std::uint64_t count() const { return starts_.size(); }
    // ids: [seq]. Any thread.
    void read(std::uint64_t window, std::span<std::int32_t> ids) const;

  private:
    const Shards* shards_;
    std::int64_t seq_, block_;
    std::int32_t end_;
    std::optional<std::int32_t> begin_;
    // [windows], as tokens of the split; and whether one begins inside of a document (kGoesOn).
    std::vector<std::uint64_t> starts_;
};

}  // namespace mr::train
