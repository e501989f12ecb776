// state.json of a checkpoint: the state of a run besides tensors, and hashes of the other files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.h"
#include "formats/json.h"
#include "train/checkpoint.h"

namespace mr::train {

struct StateHashes {
    std::uint64_t params = 0, m = 0, v = 0;   // of the values
    std::uint64_t config = 0, tokenizer = 0;  // of the files' texts
};

std::uint64_t text_hash(std::string_view text);
std::string state_text(const TrainState& state, const StateHashes& hashes);

// The checkpoint is good, but of another version.
struct OtherVersion : Error {
    explicit OtherVersion(const Error& error) : Error(error) {}
};
struct OtherTokenizer : OtherVersion {
    using OtherVersion::OtherVersion;
};

// A state.json, field by field. Invalid content is an Error (input) that names the field.
class StateFile {
  public:
    explicit StateFile(std::string path);

    formats::JsonValue field(const char* key) const;
    std::int64_t integer(const char* key) const;
    double number(const char* key) const;
    std::uint64_t hash(const char* key) const;
    bool has(const char* key) const { return json_.root().contains(key); }
    // Checks that the text has this hash; older checkpoints have none.
    void check(const char* key, std::uint64_t found, const std::string& of) const;
    void check_content() const;
    Error bad(const char* key, const char* problem) const;
    const std::string& path() const { return path_; }

  private:
    std::string path_;
    formats::JsonDocument json_;
};

}  // namespace mr::train
