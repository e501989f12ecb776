// A file that appears whole or not at all: written under a temporary name beside its target,
// synced and renamed by commit(); anything else (an exception, a full disk) removes it. A link is
// followed: what it points at is replaced, not the link.
//
// The temporary name is NAME.partial.PID. It is made, never opened: a link that is there already is
// not followed. It is locked (flock) as long as it is being written, so that the next one that
// writes NAME can remove what a process left that was killed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mr {

class OutputFile {
  public:
    // `mode`: the permissions, from its first byte on, less the process's umask.
    explicit OutputFile(const std::string& path, unsigned mode = 0644);
    ~OutputFile();
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    void write(const void* data, std::size_t bytes);
    void write(std::string_view text) { write(text.data(), text.size()); }
    // Bytes that were written already, once more: a header that counts what follows it.
    void rewrite(std::uint64_t position, std::string_view bytes);
    // Zero bytes up to the next multiple of `alignment`.
    void pad_to(std::size_t alignment);
    std::uint64_t position() const { return position_; }
    // Everything on the disk, under the temporary name: what can fail has failed by now.
    void sync();
    void commit();

  private:
    void make_temporary(unsigned mode);
    void flush();
    [[noreturn]] void fail(const char* action, int code);

    std::string path_;    // as it was given, for messages
    std::string target_;  // where it leads: a link stays a link
    std::string temporary_;
    std::string buffer_;
    std::uint64_t position_ = 0;
    int fd_ = -1;
};

// Writes what the system holds back of a file or folder to the disk: after renames inside of a
// folder, the folder itself. Throws Error (input).
void sync_path(const std::string& path);

}  // namespace mr
