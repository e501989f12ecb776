#include "formats/bytes.h"

#include <fmt/format.h>

namespace mr::formats {

Error ByteReader::error(std::string_view field, std::string value, std::string problem,
                        std::uint64_t at, std::string remedy) const {
    return Error::input({.file = file_,
                         .field = std::string(field),
                         .value = std::move(value),
                         .problem = fmt::format("{} (at offset {})", problem, at),
                         .remedy = std::move(remedy)});
}

void ByteReader::fail_short(std::uint64_t count, std::string_view field) const {
    throw error(
        field, fmt::format("{} bytes", count),
        fmt::format("runs past the end of the file: {} bytes are left of {}", remaining(), size()),
        offset_, "the file is truncated or damaged: download it again (millrace pull --verify)");
}

}  // namespace mr::formats
