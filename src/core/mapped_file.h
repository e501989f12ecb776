// A read-only memory map of a whole file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace mr {

class MappedFile {
  public:
    MappedFile() = default;
    // Throws Error (input) where the path is missing, a directory, unreadable or empty.
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    std::span<const std::byte> bytes() const { return {data_, size_}; }
    const std::string& path() const { return path_; }
    // Bytes [offset, offset + out.size()), inside of the file as it was opened, by a read instead
    // of through the map. A reader that needs each part once saves the page faults; and a file that
    // was truncated, or a disk that fails, throws Error (input) here, whereas the map raises
    // SIGBUS.
    void read(std::uint64_t offset, std::span<std::byte> out) const;
    int fd() const { return fd_; }  // open as long as the map is

  private:
    std::string path_;
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    int fd_ = -1;
};

// For a program's main(): from now on, if a mapped file is truncated or its disk fails while it is
// read through the map, the program ends with exit code 1 and one line on standard error that names
// the file, instead of a bare SIGBUS. `program` begins that line; it must outlive the program's
// work.
void explain_lost_maps(const char* program);

// A small text file (configuration, prompt), whole. Throws Error past `max_bytes`.
std::string read_text_file(const std::string& path, std::size_t max_bytes = 1u << 30);

}  // namespace mr
