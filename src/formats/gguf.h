// GGUF, the format of llama.cpp, versions 2 and 3: metadata and tensors in one file. The reader
// trusts nothing: for any bytes the result is a GgufFile or an mr::Error.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf_types.h"
#include "formats/tensor_file.h"

namespace mr::formats {

class GgufFile {
  public:
    // Maps the file; tensors and string views stay valid as long as the GgufFile lives. The first
    // of several parts (NAME-00001-of-00003.gguf, split.count) opens all of them, from the same
    // folder: the metadata is the first one's, the tensors are those of all.
    static GgufFile open(const std::string& path);
    // Borrows the bytes; `name` replaces the path in errors.
    static GgufFile parse(std::span<const std::byte> bytes, std::string name);

    // Values by key: empty if the key is absent; an Error that names the key if the type is wrong.
    bool has(std::string_view key) const { return find(key) != nullptr; }
    std::optional<std::uint64_t> get_uint(std::string_view key) const;  // any integer >= 0
    std::optional<std::int64_t> get_int(std::string_view key) const;
    std::optional<double> get_float(std::string_view key) const;  // f32, f64 or integer
    std::optional<bool> get_bool(std::string_view key) const;
    std::optional<std::string> get_string(std::string_view key) const;
    // Arrays. The views point into the file and may hold any bytes.
    std::optional<std::vector<std::string_view>> get_strings(std::string_view key) const;
    std::optional<std::vector<float>> get_floats(std::string_view key) const;
    std::optional<std::vector<std::int64_t>> get_ints(std::string_view key) const;  // or booleans

    std::vector<std::string> keys() const;  // in the file's order
    std::optional<GgufType> type_of(std::string_view key) const;

    const std::vector<FileTensor>& tensors() const { return tensors_; }  // in the file's order
    const FileTensor* find_tensor(std::string_view name) const;

    const std::string& path() const { return path_; }
    std::span<const MappedFile> maps() const { return maps_; }
    std::uint32_t version() const { return version_; }

  private:
    friend struct GgufParser;
    friend class GgufWriter;

    struct Entry {
        std::string_view key;
        GgufType type;
        GgufType element;        // element type of an array; otherwise the same as `type`
        std::uint64_t count;     // elements of an array; otherwise 1
        std::uint64_t offset;    // of the value's first byte, or of an array's first element
        std::string_view value;  // its bytes in the file, including an array's type and count
    };

    static GgufFile open_one(const std::string& path);
    void join_parts(std::uint64_t count);
    const Entry* find(std::string_view key) const;
    [[noreturn]] void wrong_type(const Entry& entry, const char* wanted) const;

    std::vector<MappedFile> maps_;  // one for each part
    std::span<const std::byte> bytes_;
    std::string path_;
    std::uint32_t version_ = 0;
    std::vector<Entry> entries_;
    std::map<std::string_view, std::size_t> entry_by_key_;
    std::vector<FileTensor> tensors_;
    std::map<std::string_view, std::size_t> tensor_by_name_;
};

}  // namespace mr::formats
