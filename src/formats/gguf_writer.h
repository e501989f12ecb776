// Writes GGUF version 3. Call in this order: metadata, declare() every tensor, then write() their
// data in the order of declaration (in any number of parts), then finish(). Without finish(),
// nothing is left behind.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/output_file.h"
#include "core/tensor.h"
#include "formats/gguf.h"

namespace mr::formats {

class GgufWriter {
  public:
    static constexpr std::size_t kAlignment = 32;

    explicit GgufWriter(const std::string& path) : out_(path) {}

    // Metadata. A key may be set once.
    void set_u32(std::string_view key, std::uint32_t value);
    void set_i32(std::string_view key, std::int32_t value);
    void set_f32(std::string_view key, float value);
    void set_bool(std::string_view key, bool value);
    void set_string(std::string_view key, std::string_view value);
    void set_strings(std::string_view key, std::span<const std::string_view> values);
    void set_strings(std::string_view key, std::span<const std::string> values);
    void set_floats(std::string_view key, std::span<const float> values);       // array of f32
    void set_ints(std::string_view key, std::span<const std::int32_t> values);  // array of i32
    void set_bools(std::string_view key, const std::vector<bool>& values);
    // Copies a value of any type from another file.
    void copy(const GgufFile& from, std::string_view key);

    // Shape outermost first; the innermost dimension is a whole number of the type's blocks.
    void declare(std::string_view name, DType dtype, const Shape& shape);
    void write(const void* data, std::size_t bytes);
    void finish();

  private:
    struct Declared {
        std::string name;
        std::uint64_t bytes;
    };

    void begin_value(std::string_view key, GgufType type);
    void begin_array(std::string_view key, GgufType element, std::uint64_t count);
    void write_header();

    OutputFile out_;
    std::string metadata_;
    std::string infos_;
    std::vector<std::string> keys_;
    std::vector<Declared> tensors_;
    std::uint64_t data_bytes_ = 0;  // of all declared tensors, padded
    std::size_t current_ = 0;       // the tensor being written
    std::uint64_t written_ = 0;     // bytes of it written so far
    bool header_written_ = false;
};

}  // namespace mr::formats
