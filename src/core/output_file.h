// A file that appears whole or not at all: it is written under a temporary name beside its target,
// then synced and renamed by commit(); otherwise (an exception, a full disk) it is removed. A link
// is followed: its target is replaced, not the link.
//
// The temporary name is NAME.millrace-partial.PID. It is always created (O_EXCL), so an existing
// link is not followed. It is locked (flock) while it is written, so that the next writer of NAME
// can remove what a killed process left: names of exactly this form, which a person does not
// choose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mr {

// Follows a name, and is followed by the process id.
inline constexpr const char* kPartialMark = ".millrace-partial.";

class OutputFile {
  public:
    // A new file has the permissions 0644, less the process's umask, and one that replaces another
    // has that one's. `mode`: 0600 for a private file; then neither has more, from the first byte
    // on.
    explicit OutputFile(const std::string& path, std::optional<unsigned> mode = {});
    ~OutputFile();
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    void write(const void* data, std::size_t bytes);
    void write(std::string_view text) { write(text.data(), text.size()); }
    // Overwrites bytes already written, such as a header that counts what follows.
    void rewrite(std::uint64_t position, std::string_view bytes);
    // Zero bytes up to the next multiple of `alignment`.
    void pad_to(std::size_t alignment);
    std::uint64_t position() const { return position_; }
    // Puts everything on the disk, under the temporary name; after it only the rename can fail.
    void sync();
    void commit();

  private:
    void make_temporary(unsigned mode);
    void discard();
    void flush();
    [[noreturn]] void fail(const char* action, int code);

    std::string path_;    // as given, for messages
    std::string target_;  // resolved: a link stays a link
    std::string temporary_;
    std::string buffer_;
    std::uint64_t position_ = 0;
    int fd_ = -1;
};

// fsync of a file or folder: after renames inside a folder, the folder itself. Throws Error
// (input).
void sync_path(const std::string& path);

}  // namespace mr
