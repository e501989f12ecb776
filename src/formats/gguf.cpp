// The accessors of a parsed GgufFile (gguf_parse.cpp parses it).
#include "formats/gguf.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <type_traits>

#include "formats/bytes.h"

namespace mr::formats {
namespace {

constexpr std::uint64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

template <typename T>
T load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
}

// Calls `use` with the number at `from`, in its own C++ type. Returns false if `type` is no number.
template <typename Use>
bool with_number(GgufType type, const std::byte* from, Use&& use) {
    switch (type) {
        case GgufType::u8:
            return use(load<std::uint8_t>(from)), true;
        case GgufType::i8:
            return use(load<std::int8_t>(from)), true;
        case GgufType::u16:
            return use(load<std::uint16_t>(from)), true;
        case GgufType::i16:
            return use(load<std::int16_t>(from)), true;
        case GgufType::u32:
            return use(load<std::uint32_t>(from)), true;
        case GgufType::i32:
            return use(load<std::int32_t>(from)), true;
        case GgufType::u64:
            return use(load<std::uint64_t>(from)), true;
        case GgufType::i64:
            return use(load<std::int64_t>(from)), true;
        case GgufType::f32:
            return use(load<float>(from)), true;
        case GgufType::f64:
            return use(load<double>(from)), true;
        default:
            return false;
    }
}
}  // namespace

const GgufFile::Entry* GgufFile::find(std::string_view key) const {
    const auto found = entry_by_key_.find(key);
    return found == entry_by_key_.end() ? nullptr : &entries_[found->second];
}

const FileTensor* GgufFile::find_tensor(std::string_view name) const {
    const auto found = tensor_by_name_.find(name);
    return found == tensor_by_name_.end() ? nullptr : &tensors_[found->second];
}

std::vector<std::string> GgufFile::keys() const {
    std::vector<std::string> out;
    out.reserve(entries_.size());
    for (const Entry& entry : entries_) out.emplace_back(entry.key);
    return out;
}

std::optional<GgufType> GgufFile::type_of(std::string_view key) const {
    const Entry* entry = find(key);
    return entry ? std::optional(entry->type) : std::nullopt;
}

void GgufFile::wrong_type(const Entry& entry, const char* wanted) const {
    const bool array = entry.type == GgufType::array;
    throw Error::input(
        {.file = path_,
         .field = std::string(entry.key),
         .value = array ? fmt::format("array of {} {}", entry.count, gguf_type_name(entry.element))
                        : std::string(gguf_type_name(entry.type)),
         .problem = fmt::format("is not {} (at offset {})", wanted, entry.offset)});
}

std::optional<std::uint64_t> GgufFile::get_uint(std::string_view key) const {
    const Entry* entry = find(key);
    if (!entry) return std::nullopt;
    if (!is_integer(entry->type)) wrong_type(*entry, "an integer");
    std::uint64_t out = 0;
    with_number(entry->type, bytes_.data() + entry->offset, [&](auto value) {
        if (value < 0) {
            throw Error::input(
                {.file = path_,
                 .field = std::string(key),
                 .value = std::to_string(value),
                 .problem = fmt::format("is negative (at offset {})", entry->offset)});
        }
        out = static_cast<std::uint64_t>(value);
    });
    return out;
}

std::optional<std::int64_t> GgufFile::get_int(std::string_view key) const {
    const Entry* entry = find(key);
    if (!entry) return std::nullopt;
    if (!is_integer(entry->type)) wrong_type(*entry, "an integer");
    std::int64_t out = 0;
    with_number(entry->type, bytes_.data() + entry->offset, [&](auto value) {
        if (value > 0 && static_cast<std::uint64_t>(value) > kMaxInt64) {
            wrong_type(*entry, "an integer that fits into 63 bits");
        }
        out = static_cast<std::int64_t>(value);
    });
    return out;
}

std::optional<double> GgufFile::get_float(std::string_view key) const {
    const Entry* entry = find(key);
    if (!entry) return std::nullopt;
    double out = 0;
    if (!with_number(entry->type, bytes_.data() + entry->offset,
                     [&](auto value) { out = static_cast<double>(value); })) {
        wrong_type(*entry, "a number");
    }
    return out;
}

std::optional<bool> GgufFile::get_bool(std::string_view key) const {
    const Entry* entry = find(key);
    if (!entry) return std::nullopt;
    if (entry->type != GgufType::boolean) wrong_type(*entry, "a bool");
    return bytes_[entry->offset] != std::byte{0};
}

std::optional<std::string> GgufFile::get_string(std::string_view key) const {
    const Entry* entry = find(key);
    if (!entry) return std::nullopt;
    if (entry->type != GgufType::string) wrong_type(*entry, "a string");
    return std::string(entry->value.substr(sizeof(std::uint64_t)));
}

std::optional<std::vector<std::string_view>> GgufFile::get_strings(std::string_view key) const {
    const Entry* entry = find(key);
    if (!entry) return std::nullopt;
    if (entry->type != GgufType::array || entry->element != GgufType::string) {
        wrong_type(*entry, "an array of strings");
    }
    std::vector<std::string_view> out;
    out.reserve(entry->count);
    const std::byte* at = bytes_.data() + entry->offset;  // lengths were checked when parsing
    for (std::uint64_t i = 0; i < entry->count; ++i) {
        const auto length = load<std::uint64_t>(at);
        at += sizeof length;
        out.emplace_back(reinterpret_cast<const char*>(at), static_cast<std::size_t>(length));
        at += length;
    }
    return out;
}

std::optional<std::vector<float>> GgufFile::get_floats(std::string_view key) const {
    const Entry* entry = find(key);
    if (!entry) return std::nullopt;
    const std::uint64_t each = gguf_type_bytes(entry->element);
    if (entry->type != GgufType::array || each == 0 || entry->element == GgufType::boolean) {
        wrong_type(*entry, "an array of numbers");
    }
    std::vector<float> out(entry->count);
    for (std::uint64_t i = 0; i < entry->count; ++i) {
        with_number(entry->element, bytes_.data() + entry->offset + i * each, [&](auto value) {
            using Value = decltype(value);
            if constexpr (std::is_same_v<Value, double>) {
                // Converting a double beyond f32's range is undefined; it would round to infinity.
                constexpr double kMax = std::numeric_limits<float>::max();
                constexpr float kInfinity = std::numeric_limits<float>::infinity();
                out[i] = value > kMax    ? kInfinity
                         : value < -kMax ? -kInfinity
                                         : static_cast<float>(value);
            } else {
                out[i] = static_cast<float>(value);
            }
        });
    }
    return out;
}

std::optional<std::vector<std::int64_t>> GgufFile::get_ints(std::string_view key) const {
    const Entry* entry = find(key);
    if (!entry) return std::nullopt;
    const bool boolean = entry->element == GgufType::boolean;
    if (entry->type != GgufType::array || !(boolean || is_integer(entry->element))) {
        wrong_type(*entry, "an array of integers");
    }
    const GgufType type = boolean ? GgufType::u8 : entry->element;
    const std::uint64_t each = gguf_type_bytes(type);
    std::vector<std::int64_t> out(entry->count);
    for (std::uint64_t i = 0; i < entry->count; ++i) {
        with_number(type, bytes_.data() + entry->offset + i * each, [&](auto value) {
            if (value > 0 && static_cast<std::uint64_t>(value) > kMaxInt64) {
                wrong_type(*entry, "an array of integers that fit into 63 bits");
            }
            out[i] = static_cast<std::int64_t>(value);
        });
    }
    return out;
}

}  // namespace mr::formats
