// Windows of whole documents, for block diffusion: a document begins at the start of a block and is
// padded with end tokens to the end of its last block, so that the rest of a block only says that
// the document has ended. The packed data stays as it is.
//
// A window begins with a document, like the texts that a model writes. It has as many of the
// following documents as fit, and the last one is cut. The next window begins with the document
// that was cut, from its start; a document longer than a window continues in the next one instead.
// Empty documents are dropped, and so are tokens at the end of a split that do not fill a window.
//
// If the tokenizer has a beginning-of-text token, every document begins with it, as do prompts and
// evaluated texts. It is given, never to be filled in: ids hold it as ~id.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "train/shards.h"

namespace mr::train {

class DocumentWindows {
  public:
    // Reads all of the shards, which must outlive the object. `seq` is a multiple of `block`.
    DocumentWindows(const Shards& shards, std::int64_t seq, std::int64_t block, std::int32_t end,
                    std::optional<std::int32_t> begin = {});

    std::uint64_t count() const { return starts_.size(); }
    // ids: [seq]. Thread-safe.
    void read(std::uint64_t window, std::span<std::int32_t> ids) const;

  private:
    const Shards* shards_;
    std::int64_t seq_, block_;
    std::int32_t end_;
    std::optional<std::int32_t> begin_;
    // [windows], as token indices in the split; kGoesOn: the window begins inside a document.
    std::vector<std::uint64_t> starts_;
};

}  // namespace mr::train
