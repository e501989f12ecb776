#include "core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/open_file.h"

namespace mr {

MappedFile::MappedFile(const std::string& path) : path_(path) {
    const int fd = open_regular(path, O_RDONLY);
    struct stat status {};
    if (::fstat(fd, &status) != 0) {
        const int code = errno;
        ::close(fd);
        throw Error::input({.file = path, .problem = std::strerror(code)});
    }
    if (status.st_size == 0) {
        ::close(fd);
        throw Error::input(
            {.file = path, .problem = "is empty", .remedy = "give a file with something in it"});
    }
    size_ = static_cast<std::size_t>(status.st_size);
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (address == MAP_FAILED) {
        const int code = errno;
        ::close(fd);
        throw Error::device(
            {.file = path, .problem = std::string("cannot be mapped: ") + std::strerror(code)});
    }
    data_ = static_cast<const std::byte*>(address);
    fd_ = fd;
}

MappedFile::~MappedFile() {
    if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
    if (fd_ >= 0) ::close(fd_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(fd_, other.fd_);
    return *this;
}

void MappedFile::read(std::uint64_t offset, std::span<std::byte> out) const {
    MR_CHECK(offset <= size_ && out.size() <= size_ - offset, "the bytes are inside of the file");
    while (!out.empty()) {
        const ssize_t count = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) {
            throw Error::input(
                {.file = path_,
                 .field = "offset",
                 .value = std::to_string(offset),
                 .problem = count == 0 ? std::string("the file was truncated while in use")
                                       : std::string("cannot be read: ") + std::strerror(errno),
                 .remedy = count == 0 ? "do not change a file that is in use" : "check the disk"});
        }
        out = out.subspan(static_cast<std::size_t>(count));
        offset += static_cast<std::uint64_t>(count);
    }
}

std::string read_text_file(const std::string& path, std::size_t max_bytes) {
    const MappedFile file(path);
    if (file.bytes().size() > max_bytes) {
        throw Error::input(
            {.file = path,
             .field = "size",
             .value = std::to_string(file.bytes().size()),
             .problem = "exceeds the limit of " + std::to_string(max_bytes) + " bytes"});
    }
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace mr
