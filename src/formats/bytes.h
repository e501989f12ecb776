// Reads little-endian fields from untrusted bytes, with size arithmetic that cannot wrap. Every
// error names the file, the field and the offset.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/error.h"
#include "core/printable.h"

namespace mr::formats {

static_assert(std::endian::native == std::endian::little,
              "files are little-endian and their tensors are used in place");

inline std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) {
    std::uint64_t out = 0;
    if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
    return out;
}

inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
    std::uint64_t out = 0;
    if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
    return out;
}

// Text from a file, made printable for a message (core/printable.h) and cut to a name's length.
inline std::string printable(std::string_view text, std::size_t most_bytes = 80) {
    return mr::printable(text, most_bytes);
}

// A cursor over the bytes of a file. It never reads past the end.
class ByteReader {
  public:
    ByteReader(std::span<const std::byte> bytes, std::string file)
        : bytes_(bytes), file_(std::move(file)) {}

    std::uint64_t offset() const { return offset_; }
    std::uint64_t remaining() const { return bytes_.size() - offset_; }
    std::uint64_t size() const { return bytes_.size(); }
    const std::string& file() const { return file_; }

    // Reads one fixed-size value. `field` is its name in errors.
    template <typename T>
    T read(std::string_view field) {
        static_assert(std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>);
        need(sizeof(T), field);
        T value;
        std::memcpy(&value, bytes_.data() + offset_, sizeof(T));
        offset_ += sizeof(T);
        return value;
    }

    // `count` raw bytes, as a view.
    std::string_view take(std::uint64_t count, std::string_view field) {
        need(count, field);
        const char* first = reinterpret_cast<const char*>(bytes_.data()) + offset_;
        offset_ += count;
        return {first, static_cast<std::size_t>(count)};
    }

    void skip(std::uint64_t count, std::string_view field) {
        need(count, field);
        offset_ += count;
    }

    // An input error about `field`, with the offset at which it was found.
    Error error(std::string_view field, std::string value, std::string problem, std::uint64_t at,
                std::string remedy = {}) const;

  private:
    void need(std::uint64_t count, std::string_view field) const {
        if (count > remaining()) [[unlikely]]
            fail_short(count, field);
    }
    [[noreturn]] void fail_short(std::uint64_t count, std::string_view field) const;

    std::span<const std::byte> bytes_;
    std::string file_;
    std::uint64_t offset_ = 0;
};

}  // namespace mr::formats
