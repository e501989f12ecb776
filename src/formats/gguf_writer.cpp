#include "formats/gguf_writer.h"

#include <algorithm>
#include <cstring>

namespace mr::formats {
namespace {

template <typename T>
void put(std::string& out, T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    out.append(bytes, sizeof(T));
}

void put_string(std::string& out, std::string_view text) {
    put<std::uint64_t>(out, text.size());
    out.append(text);
}

std::uint64_t padded(std::uint64_t bytes) {
    return (bytes + GgufWriter::kAlignment - 1) / GgufWriter::kAlignment * GgufWriter::kAlignment;
}

}  // namespace

void GgufWriter::begin_value(std::string_view key, GgufType type) {
    MR_CHECK(!header_written_, "metadata comes before tensor data");
    MR_CHECK(std::find(keys_.begin(), keys_.end(), key) == keys_.end(), "a key is set once");
    keys_.emplace_back(key);
    put_string(metadata_, key);
    put(metadata_, static_cast<std::uint32_t>(type));
}

void GgufWriter::begin_array(std::string_view key, GgufType element, std::uint64_t count) {
    begin_value(key, GgufType::array);
    put(metadata_, static_cast<std::uint32_t>(element));
    put(metadata_, count);
}

void GgufWriter::set_u32(std::string_view key, std::uint32_t value) {
    begin_value(key, GgufType::u32);
    put(metadata_, value);
}

void GgufWriter::set_i32(std::string_view key, std::int32_t value) {
    begin_value(key, GgufType::i32);
    put(metadata_, value);
}

void GgufWriter::set_f32(std::string_view key, float value) {
    begin_value(key, GgufType::f32);
    put(metadata_, value);
}

void GgufWriter::set_bool(std::string_view key, bool value) {
    begin_value(key, GgufType::boolean);
    put<std::uint8_t>(metadata_, value ? 1 : 0);
}

void GgufWriter::set_string(std::string_view key, std::string_view value) {
    begin_value(key, GgufType::string);
    put_string(metadata_, value);
}

void GgufWriter::set_strings(std::string_view key, std::span<const std::string_view> values) {
    begin_array(key, GgufType::string, values.size());
    for (const std::string_view value : values) put_string(metadata_, value);
}

void GgufWriter::set_strings(std::string_view key, std::span<const std::string> values) {
    begin_array(key, GgufType::string, values.size());
    for (const std::string& value : values) put_string(metadata_, value);
}

void GgufWriter::set_floats(std::string_view key, std::span<const float> values) {
    begin_array(key, GgufType::f32, values.size());
    for (const float value : values) put(metadata_, value);
}

void GgufWriter::set_bools(std::string_view key, const std::vector<bool>& values) {
    begin_array(key, GgufType::boolean, values.size());
    for (const bool value : values) put<std::uint8_t>(metadata_, value ? 1 : 0);
}

void GgufWriter::set_ints(std::string_view key, std::span<const std::int32_t> values) {
    begin_array(key, GgufType::i32, values.size());
    for (const std::int32_t value : values) put(metadata_, value);
}

void GgufWriter::copy(const GgufFile& from, std::string_view key) {
    const GgufFile::Entry* entry = from.find(key);
    MR_CHECK(entry != nullptr, "the key to copy is in the file");
    MR_CHECK(key != "general.alignment", "the alignment belongs to the file, not to the model");
    begin_value(key, entry->type);
    metadata_.append(entry->value);
}

void GgufWriter::declare(std::string_view name, DType dtype, const Shape& shape) {
    MR_CHECK(!header_written_, "tensors are declared before any data is written");
    MR_CHECK(shape.rank >= 1 && shape.count() > 0, "a tensor has elements");
    MR_CHECK(shape[shape.rank - 1] % dtype_info(dtype).block == 0, "rows are whole blocks");
    put_string(infos_, name);
    put(infos_, static_cast<std::uint32_t>(shape.rank));
    for (int i = shape.rank - 1; i >= 0; --i) {
        put(infos_, static_cast<std::uint64_t>(shape[i]));
    }
    put(infos_, ggml_type(dtype).number);
    put(infos_, data_bytes_);
    const std::uint64_t bytes = dtype_bytes(dtype, static_cast<std::size_t>(shape.count()));
    tensors_.push_back({std::string(name), bytes});
    data_bytes_ += padded(bytes);
}

void GgufWriter::write_header() {
    std::string head = "GGUF";
    put<std::uint32_t>(head, 3);
    put<std::uint64_t>(head, tensors_.size());
    put<std::uint64_t>(head, keys_.size());
    out_.write(head);
    out_.write(metadata_);
    out_.write(infos_);
    out_.pad_to(kAlignment);
    header_written_ = true;
}

void GgufWriter::write(const void* data, std::size_t bytes) {
    if (!header_written_) write_header();
    MR_CHECK(current_ < tensors_.size() && bytes <= tensors_[current_].bytes - written_,
             "the data is what was declared, tensor by tensor");
    out_.write(data, bytes);
    written_ += bytes;
    if (written_ == tensors_[current_].bytes) {
        out_.pad_to(kAlignment);
        ++current_;
        written_ = 0;
    }
}

void GgufWriter::finish() {
    if (!header_written_) write_header();
    MR_CHECK(current_ == tensors_.size(), "every declared tensor was written");
    out_.commit();
}

}  // namespace mr::formats
