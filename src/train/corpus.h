// The texts for training a tokenizer and for packing: files, folders, globs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/mapped_file.h"

namespace mr::train {

// Every regular file that the arguments name, each once, in the order of the arguments and sorted
// by path within one: a file itself, all files under a folder (without hidden ones), the matches of
// a glob. Throws Error (input) if an argument matches nothing.
std::vector<std::string> corpus_files(const std::vector<std::string>& arguments);

// Throws Error (input) if `text`, which comes from `name`, is not text (compressed, binary).
void require_text(std::string_view text, const std::string& name);

// The text of one file. An empty file is an empty text; require_text() holds.
class CorpusText {
  public:
    explicit CorpusText(const std::string& path);
    std::string_view text() const {
        return {reinterpret_cast<const char*>(file_.bytes().data()), file_.bytes().size()};
    }

  private:
    MappedFile file_;
};

// Bytes of all the files together, for progress.
std::uint64_t corpus_bytes(const std::vector<std::string>& files);

// The documents of a text, one after another: the parts between separators, without leading blanks
// and one trailing newline, as `millrace eval` cuts them; empty ones are dropped. Without a
// separator the whole text is one document, unchanged.
class Documents {
  public:
    Documents(std::string_view text, std::string_view separator)
        : rest_(text), separator_(separator) {}
    // False if there are no more.
    bool next(std::string_view& document);
    // Bytes not read yet.
    std::size_t left() const { return rest_.size(); }

  private:
    std::string_view rest_, separator_;
};

}  // namespace mr::train
