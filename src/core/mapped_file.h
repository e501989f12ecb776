// A read-only memory map of a whole file.
#pragma once

#include <cstddef>
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
    // The file itself, open as long as the map: whoever reads all of it once saves the page faults.
    int fd() const { return fd_; }

  private:
    std::string path_;
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    int fd_ = -1;
};

// A small text file (configuration, prompt), whole. Throws Error past `max_bytes`.
std::string read_text_file(const std::string& path, std::size_t max_bytes = 1u << 30);

}  // namespace mr
