// The texts for training a tokenizer and for packing: files, folders, globs.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/mapped_file.h"
#include "core/progress.h"
#include "text/chat_writer.h"
#include "text/documents.h"

namespace mr::train {

// Every regular file that the arguments name, each once, in the order of the arguments and sorted
// by path within one: a file itself, all files under a folder (without hidden ones), the matches of
// a glob. Throws Error (input) if an argument matches nothing.
std::vector<std::string> corpus_files(const std::vector<std::string>& arguments);

// Throws Error (input) if `text`, which comes from `name`, is not UTF-8 text: packed, binary, in
// another encoding. The message says what it is, where the first bytes tell.
void require_text(std::string_view text, const std::string& name);

struct Document {
    std::string_view text{};
    const text::ChatText* chat = nullptr;  // a conversation: its template's tokens are no text
};

// The documents of one file, which is text or has a JSON object per line (JSONL), plain or packed
// by gzip or zstd. What it is, its bytes tell; of JSON lines also its name. A byte order mark is
// dropped. An empty file has no documents; require_text() holds for the others.
//
// A JSON object has "text", "messages" (written by `chats`) or "prompt" and "completion" (both
// texts, which are joined, or both lists of messages).
class CorpusFile {
  public:
    // `separator` stands between documents of a text; empty: it is one. `chats` outlives the file.
    // None: the contents of messages, a line each. `progress` is called while a file is unpacked,
    // and may throw to end that.
    CorpusFile(const std::string& path, std::string_view separator,
               const text::ChatWriter* chats = nullptr, const Progress& progress = {});

    // False if there are no more. The document stays valid until release().
    bool next(Document& document);
    // Frees all documents but the last one.
    void release();

    bool has_records() const { return lines_; }
    // What was read of the file, from 0 to 1.
    double done() const;

  private:
    Document record(std::string_view line);

    std::string path_;
    MappedFile file_;
    std::string_view text_;  // of the file, unpacked
    bool lines_ = false;     // JSON lines
    std::string_view rest_;  // of the lines
    std::size_t line_ = 0;   // read so far
    text::Documents documents_;
    const text::ChatWriter* chats_;
    std::deque<text::ChatText> made_;  // documents that are in no file
};

// Bytes of all the files together, for progress.
std::uint64_t file_bytes(const std::string& path);
std::uint64_t corpus_bytes(const std::vector<std::string>& files);

}  // namespace mr::train
