#include "formats/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>

#include "formats/bytes.h"
#include "formats/json.h"

namespace mr::formats {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the reference reader's own limit
constexpr std::uint64_t kMaxIndexBytes = 100'000'000;
constexpr std::size_t kMaxNameBytes = 1024;
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kSums = "millrace.sums";
constexpr const char* kHeaderSum = "millrace.header";
constexpr std::size_t kSumDigits = 16;

struct TypeName {
    const char* name;
    DType dtype;
};

constexpr TypeName kTypes[] = {
    {"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16}, {"F64", DType::f64},
    {"I64", DType::i64}, {"I32", DType::i32}, {"I16", DType::i16},   {"I8", DType::i8},
    {"U8", DType::u8},   {"BOOL", DType::u8},
};

const char* safetensors_name(DType dtype) {
    for (const TypeName& type : kTypes) {
        if (type.dtype == dtype) return type.name;
    }
    return nullptr;
}

// Checks one tensor's entry in the header.
class Entry {
  public:
    Entry(const std::string& file, std::string_view name, JsonValue value, std::uint64_t data_start,
          std::uint64_t data_bytes)
        : file_(file),
          label_("tensor '" + printable(name) + "'"),
          data_start_(data_start),
          data_bytes_(data_bytes) {
        if (name.empty() || name.size() > kMaxNameBytes) {
            throw fail("", {}, fmt::format("the name is not 1 to {} bytes", kMaxNameBytes));
        }
        if (!value.is_object()) throw fail("", show(value), "is not an object");
        for (const auto& [key, field] : value.items()) {
            if (key != "dtype" && key != "shape" && key != "data_offsets") {
                throw fail(" " + printable(key), {}, "is not a field of a tensor");
            }
        }
        read_dtype(member(value, "dtype"));
        read_shape(member(value, "shape"));
        read_offsets(member(value, "data_offsets"));
    }

    DType dtype = DType::f32;
    Shape shape;
    std::uint64_t begin = 0;  // relative to the start of the data
    std::uint64_t end = 0;

    Error fail(const std::string& field, std::string value, std::string problem) const {
        return Error::input({.file = file_,
                             .field = label_ + field,
                             .value = std::move(value),
                             .problem = fmt::format("{} (in the header, which ends at offset {})",
                                                    problem, data_start_)});
    }

  private:
    static std::string show(JsonValue value) { return printable(value.shown()); }

    JsonValue member(JsonValue value, const char* key) const {
        const auto found = value.find(key);
        if (!found) throw fail(std::string(" ") + key, {}, "is missing");
        return *found;
    }

    void read_dtype(JsonValue value) {
        if (!value.is_string()) throw fail(" dtype", show(value), "is not a string");
        const std::string_view name = value.text();
        for (const TypeName& type : kTypes) {
            if (name == type.name) {
                dtype = type.dtype;
                return;
            }
        }
        throw fail(" dtype", printable(name),
                   "is not supported: F32, F16, BF16, F64, I64, I32, I16, I8, U8 and BOOL are");
    }

    void read_shape(JsonValue value) {
        if (!value.is_array()) throw fail(" shape", show(value), "is not an array");
        if (value.size() > Shape::kMaxRank) {
            throw fail(" shape", show(value), "has more than 4 dimensions");
        }
        const auto element = static_cast<std::uint64_t>(dtype_info(dtype).block_bytes);
        std::uint64_t bytes = element;
        for (const JsonValue dim : value) {
            if (!dim.is_number_unsigned()) {
                throw fail(" shape", show(value), "has an element that is not an integer");
            }
            const auto product = checked_mul(bytes, dim.get<std::uint64_t>());
            // Each dimension must fit by itself, too: a zero in another one would hide its size.
            if (!product || *product > INT64_MAX || dim.get<std::uint64_t>() > INT64_MAX) {
                throw fail(" shape", show(value), "makes the tensor impossibly large");
            }
            bytes = *product;
            shape.dims[static_cast<std::size_t>(shape.rank++)] = dim.get<std::int64_t>();
        }
        if (shape.rank == 0) shape = {1};
        bytes_ = bytes;
    }

    void read_offsets(JsonValue value) {
        const bool pair = value.is_array() && value.size() == 2 && value[0].is_number_unsigned() &&
                          value[1].is_number_unsigned();
        if (!pair) throw fail(" data_offsets", show(value), "is not a pair of whole numbers");
        begin = value[0].get<std::uint64_t>();
        end = value[1].get<std::uint64_t>();
        if (begin > end) throw fail(" data_offsets", show(value), "ends before it begins");
        if (end > data_bytes_) {
            throw fail(" data_offsets", show(value),
                       fmt::format("runs past the end of the file: {} bytes of data", data_bytes_));
        }
        if (end - begin != bytes_) {
            throw fail(" data_offsets", show(value),
                       fmt::format("holds {} bytes, but {} of shape {} takes {}", end - begin,
                                   dtype_name(dtype), shape.str(), bytes_));
        }
    }

    const std::string& file_;
    std::string label_;
    std::uint64_t data_start_;
    std::uint64_t data_bytes_;
    std::uint64_t bytes_ = 0;
};

std::map<std::string, std::string> read_metadata(JsonValue value, const std::string& file) {
    const auto fail = [&](std::string field, std::string problem) {
        return Error::input(
            {.file = file, .field = std::move(field), .problem = std::move(problem)});
    };
    if (!value.is_object()) throw fail(kMetadata, "is not an object");
    std::map<std::string, std::string> out;
    for (const auto& [key, entry] : value.items()) {
        if (!entry.is_string()) {
            throw fail(fmt::format("{} '{}'", kMetadata, printable(key)), "is not a string");
        }
        out[std::string(key)] = entry.text();
    }
    return out;
}

std::string sum_text(std::uint64_t sum) { return fmt::format("{:016x}", sum); }

// Checksums that are not known yet.
std::string zeros(std::size_t size) {
    std::string out(size, '0');
    for (std::size_t i = kSumDigits; i < size; i += kSumDigits + 1) out[i] = ' ';
    return out;
}

std::uint64_t header_sum(std::string_view text) {
    TensorSum sum;
    sum.add(text.data(), text.size());
    return sum.value();
}

// Moves a file's checksums from its metadata to its tensors (in the order of their data), and
// checks the header's. Without checksums: nothing.
void take_sums(std::map<std::string, std::string>& metadata, std::string_view header,
               std::vector<FileTensor>& tensors, const std::string& file) {
    const auto sums = metadata.extract(kSums), own = metadata.extract(kHeaderSum);
    if (!sums && !own) return;
    const auto fail = [&](const std::string& field) {
        return Error::input({.file = file,
                             .field = field,
                             .problem = "is not as it was written: its checksum differs",
                             .remedy = "the file was damaged: take a copy of it (a program that "
                                       "changes a header must not keep the metadata "
                                       "\"millrace.sums\" and \"millrace.header\")"});
    };
    if (!sums || !own) throw fail("header");
    std::string plain(header);
    for (const std::string& digits : {sums.mapped(), own.mapped()}) {
        const std::size_t at = digits.empty() ? 0 : plain.find('"' + digits + '"');
        if (at == std::string::npos) throw fail("header");
        plain.replace(at + 1, digits.size(), zeros(digits.size()));
    }
    if (sum_text(header_sum(plain)) != own.mapped()) throw fail("header");
    std::string_view rest = sums.mapped();
    for (FileTensor& tensor : tensors) {
        const std::string_view digits = rest.substr(0, kSumDigits);
        std::uint64_t sum = 0;
        std::from_chars(digits.data(), digits.data() + digits.size(), sum, 16);
        const bool more = &tensor != &tensors.back();
        if (sum_text(sum) != digits || (more && rest.substr(kSumDigits, 1) != " ")) {
            throw fail(fmt::format("tensor {}", printable(tensor.name)));
        }
        tensor.sum = sum;
        rest.remove_prefix(kSumDigits + (more ? 1 : 0));
    }
    if (!rest.empty()) throw fail("header");
}

// A name like "model-00001-of-00002.safetensors" that does not lead out of the folder.
void check_shard_name(const std::string& name, const std::string& index_path) {
    const bool plain = !name.empty() && name.size() <= 255 &&
                       name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos &&
                       name != "." && name != ".." && name.find("..") == std::string::npos;
    if (!plain) {
        throw Error::input({.file = index_path,
                            .field = "weight_map",
                            .value = "'" + printable(name) + "'",
                            .problem = "is not the plain name of a file beside the index"});
    }
}

}  // namespace

// Adds the tensors of one file, whose bytes are `bytes`.
void SafetensorsFile::read(std::span<const std::byte> bytes, const std::string& file) {
    ByteReader in(bytes, file);
    const auto header_bytes = in.read<std::uint64_t>("header length");
    if (header_bytes > in.remaining() || header_bytes > kMaxHeaderBytes || header_bytes < 2) {
        throw in.error(
            "header length", std::to_string(header_bytes),
            fmt::format("is not 2 to {} (the {} bytes that follow, at most {})",
                        std::min(in.remaining(), kMaxHeaderBytes), in.remaining(), kMaxHeaderBytes),
            0, "the file is truncated, or is not a safetensors file");
    }
    const std::string_view text = in.take(header_bytes, "header");
    const JsonDocument document = JsonDocument::parse(text, file, "header", {.depth = 8});
    const JsonValue header = document.root();
    if (!header.is_object()) throw in.error("header", header.type_name(), "is not an object", 8);

    const std::uint64_t data_start = in.offset();
    const std::uint64_t data_bytes = in.remaining();
    std::vector<FileTensor> tensors;
    std::map<std::string, std::string> metadata;
    for (const auto& [name, value] : header.items()) {
        if (name == kMetadata) {
            metadata = read_metadata(value, file);
            continue;
        }
        const Entry entry(file, name, value, data_start, data_bytes);
        FileTensor tensor;
        tensor.name = name;
        tensor.file = file;
        tensor.offset = data_start + entry.begin;
        tensor.view =
            Tensor(const_cast<std::byte*>(bytes.data() + tensor.offset), entry.dtype, entry.shape);
        tensors.push_back(std::move(tensor));
    }
    // An empty tensor sorts before the tensor that starts at the same offset.
    std::sort(tensors.begin(), tensors.end(), [](const FileTensor& a, const FileTensor& b) {
        return std::tuple(a.offset, a.view.bytes(), std::string_view(a.name)) <
               std::tuple(b.offset, b.view.bytes(), std::string_view(b.name));
    });
    // The tensors must cover the data without gap, overlap or remainder.
    std::uint64_t expected = data_start;
    for (const FileTensor& tensor : tensors) {
        if (tensor.offset != expected) {
            throw in.error(
                "tensor '" + printable(tensor.name) + "' data_offsets[0]",
                std::to_string(tensor.offset - data_start),
                fmt::format("{}: the tensor before it ends at {}",
                            tensor.offset < expected ? "overlaps another tensor" : "leaves a gap",
                            expected - data_start),
                tensor.offset);
        }
        expected = tensor.offset + tensor.view.bytes();
    }
    if (expected != in.size()) {
        throw in.error(
            "data length", std::to_string(data_bytes),
            fmt::format("is not the {} bytes that the tensors take", expected - data_start),
            data_start);
    }
    take_sums(metadata, text, tensors, file);
    metadata_.merge(metadata);
    std::move(tensors.begin(), tensors.end(), std::back_inserter(tensors_));
}

void SafetensorsFile::index_names() {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        if (!tensor_by_name_.emplace(tensors_[i].name, i).second) {
            throw Error::input({.file = tensors_[i].file,
                                .field = "tensor '" + printable(tensors_[i].name) + "'",
                                .problem = "is in two shards"});
        }
    }
}

void SafetensorsFile::open_sharded(const std::string& index_path, const std::string& folder) {
    const JsonDocument document = JsonDocument::parse(read_text_file(index_path, kMaxIndexBytes),
                                                      index_path, {}, {.depth = 16});
    const auto fail = [&](std::string field, std::string value, std::string problem) {
        return Error::input({.file = index_path,
                             .field = std::move(field),
                             .value = std::move(value),
                             .problem = std::move(problem)});
    };
    const auto map = document.root().find("weight_map");
    if (!map || !map->is_object() || map->empty()) {
        throw fail("weight_map", {}, "is missing, empty or not an object");
    }
    std::map<std::string, std::vector<std::string>> shards;  // shard -> its tensors
    for (const auto& [name, value] : map->items()) {
        if (!value.is_string()) {
            throw fail("weight_map '" + printable(name) + "'", value.type_name(),
                       "is not a string");
        }
        const std::string shard(value.text());
        check_shard_name(shard, index_path);
        shards[shard].emplace_back(name);
    }
    for (const auto& [shard, names] : shards) {
        const std::string path = (std::filesystem::path(folder) / shard).string();
        maps_.emplace_back(path);
        const std::size_t first = tensors_.size();
        read(maps_.back().bytes(), path);
        std::set<std::string_view> present;
        for (std::size_t i = first; i < tensors_.size(); ++i) present.insert(tensors_[i].name);
        for (const std::string& name : names) {
            if (!present.contains(name)) {
                throw fail("weight_map '" + printable(name) + "'", printable(shard),
                           "does not hold this tensor");
            }
        }
    }
}

SafetensorsFile SafetensorsFile::open(const std::string& path_or_folder) {
    namespace fs = std::filesystem;
    SafetensorsFile file;
    file.path_ = path_or_folder;
    std::error_code ignored;
    if (!fs::is_directory(path_or_folder, ignored)) {
        file.maps_.emplace_back(path_or_folder);
        file.read(file.maps_.back().bytes(), path_or_folder);
    } else {
        const std::string single = (fs::path(path_or_folder) / "model.safetensors").string();
        const std::string index = single + ".index.json";
        if (fs::exists(single, ignored)) {
            file.maps_.emplace_back(single);
            file.read(file.maps_.back().bytes(), single);
        } else if (fs::exists(index, ignored)) {
            file.open_sharded(index, path_or_folder);
        } else {
            throw Error::input(
                {.file = path_or_folder,
                 .problem = "holds neither model.safetensors nor model.safetensors.index.json",
                 .remedy = "give a folder downloaded from Hugging Face"});
        }
    }
    file.index_names();
    return file;
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, std::string name) {
    SafetensorsFile file;
    file.path_ = std::move(name);
    file.read(bytes, file.path_);
    file.index_names();
    return file;
}

const FileTensor* SafetensorsFile::find_tensor(std::string_view name) const {
    const auto found = tensor_by_name_.find(name);
    return found == tensor_by_name_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsWriter::set_metadata(std::string_view key, std::string_view value) {
    MR_CHECK(!header_written_, "metadata comes before tensor data");
    metadata_[std::string(key)] = value;
}

void SafetensorsWriter::declare(std::string_view name, DType dtype, const Shape& shape) {
    MR_CHECK(!header_written_, "tensors are declared before any data is written");
    MR_CHECK(!is_quantised(dtype) && safetensors_name(dtype), "safetensors has the type");
    tensors_.push_back({std::string(name), dtype, shape});
    declared_ += tensors_.back().bytes();
}

// The header's text with these digits.
std::string SafetensorsWriter::header(std::string_view sums, std::string_view own) const {
    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    std::map<std::string, std::string> metadata = metadata_;
    metadata[kSums] = sums;
    metadata[kHeaderSum] = own;
    header[kMetadata] = std::move(metadata);
    std::uint64_t offset = 0;
    for (const Declared& tensor : tensors_) {
        const std::uint64_t bytes = tensor.bytes();
        nlohmann::ordered_json shape = nlohmann::ordered_json::array();
        for (int i = 0; i < tensor.shape.rank; ++i) shape.push_back(tensor.shape[i]);
        MR_CHECK(!header.contains(tensor.name), "a tensor is declared once");
        header[tensor.name] = {{"dtype", safetensors_name(tensor.dtype)},
                               {"shape", std::move(shape)},
                               {"data_offsets", {offset, offset + bytes}}};
        offset += bytes;
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');  // so that the data is aligned
    return text;
}

// With zeros for the checksums, which finish() writes.
void SafetensorsWriter::write_header() {
    const std::size_t count = tensors_.size() * (kSumDigits + 1);
    plain_header_ = header(zeros(count > 0 ? count - 1 : 0), zeros(kSumDigits));
    const std::uint64_t length = plain_header_.size();
    out_.write(&length, sizeof length);
    out_.write(plain_header_);
    header_written_ = true;
    left_ = tensors_.empty() ? 0 : tensors_.front().bytes();
}

void SafetensorsWriter::write(const void* data, std::size_t bytes) {
    if (!header_written_) write_header();
    MR_CHECK(bytes <= declared_ - written_, "no more data than was declared");
    out_.write(data, bytes);
    written_ += bytes;
    const auto* from = static_cast<const std::byte*>(data);
    while (bytes > 0) {
        end_whole_tensors();
        const std::size_t part = std::min<std::uint64_t>(bytes, left_);
        sum_.add(from, part);
        from += part;
        bytes -= part;
        left_ -= part;
    }
}

// Goes on to the next tensor that is not complete.
void SafetensorsWriter::end_whole_tensors() {
    while (left_ == 0 && sums_.size() < tensors_.size()) {
        sums_.push_back(sum_.value());
        sum_ = TensorSum();
        if (sums_.size() < tensors_.size()) left_ = tensors_[sums_.size()].bytes();
    }
}

void SafetensorsWriter::finish(const std::function<void()>& ready) {
    if (!header_written_) write_header();
    MR_CHECK(written_ == declared_, "every declared tensor was written");
    end_whole_tensors();
    std::string sums;
    for (const std::uint64_t sum : sums_) sums += (sums.empty() ? "" : " ") + sum_text(sum);
    out_.rewrite(sizeof(std::uint64_t), header(sums, sum_text(header_sum(plain_header_))));
    out_.sync();
    if (ready) ready();
    out_.commit();
}

}  // namespace mr::formats
