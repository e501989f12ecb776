// GgufFile::open() and parse(): read the whole file, front to back. gguf.cpp has the accessors.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "core/utf8.h"
#include "formats/bytes.h"
#include "formats/gguf.h"

namespace mr::formats {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr int kMaxArrayDepth = 4;
constexpr std::uint64_t kMaxKeyBytes = 65535;
constexpr std::uint64_t kMaxTensorNameBytes = 1024;
constexpr std::uint64_t kMaxAlignment = std::uint64_t{1} << 20;
// The least bytes of a key/value pair and of a tensor's description: they bound the counts.
constexpr std::uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;
constexpr std::uint64_t kMinInfoBytes = 8 + 1 + 4 + 8 + 4 + 8;
// Sparse files cost no disk space, and their zeros parse as empty strings and lists, so the number
// of elements is limited. The largest vocabularies have 300,000 tokens and 600,000 merges.
constexpr std::uint64_t kMaxListElements = std::uint64_t{1} << 22;  // strings, lists and booleans
constexpr std::uint64_t kMaxNumbers = std::uint64_t{1} << 26;       // numbers in an array
constexpr std::uint64_t kMaxEntries = std::uint64_t{1} << 16;
constexpr std::uint64_t kMaxTensors = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxElements = std::numeric_limits<std::int64_t>::max() / 8;

}  // namespace

// Reads a whole file into a GgufFile, front to back.
struct GgufParser {
    GgufParser(GgufFile& file_, std::span<const std::byte> bytes)
        : file(file_), in(bytes, file_.path_) {}

    void parse() {
        read_header();
        for (std::uint64_t i = 0; i < entry_count; ++i) read_entry(i);
        read_alignment();
        for (std::uint64_t i = 0; i < tensor_count; ++i) read_info(i);
        place_tensors();
    }

    void read_header() {
        const auto magic = in.read<std::uint32_t>("magic");
        if (magic != kMagic) {
            throw in.error("magic", fmt::format("{:#010x}", magic), "is not GGUF's (0x46554747)", 0,
                           "give a GGUF file");
        }
        const auto version = in.read<std::uint32_t>("version");
        if (version != 2 && version != 3) {
            const bool swapped = (version & 0xffffu) == 0 && version != 0;
            throw in.error("version", std::to_string(version),
                           swapped ? "is a big-endian file's, which is not supported"
                                   : "is not supported: 2 and 3 are",
                           4, "convert the file again with a current llama.cpp");
        }
        file.version_ = version;
        tensor_count = in.read<std::uint64_t>("tensor_count");
        entry_count = in.read<std::uint64_t>("metadata_kv_count");
        check_count("metadata_kv_count", entry_count, kMinEntryBytes, 16, kMaxEntries);
        check_count("tensor_count", tensor_count, kMinInfoBytes, 8, kMaxTensors);
    }

    // Refuses a count that a file of this length cannot hold, before anything is allocated for it.
    void check_count(std::string_view field, std::uint64_t count, std::uint64_t least_bytes,
                     std::uint64_t at, std::uint64_t most) {
        if (count > most) {
            throw in.error(field, std::to_string(count),
                           fmt::format("is more than {}, the most that is read", most), at);
        }
        if (count > in.remaining() / least_bytes) {
            throw in.error(
                field, std::to_string(count),
                fmt::format("is more than the {} bytes that follow can hold", in.remaining()), at,
                "the file is truncated or damaged: download it again (millrace pull --verify)");
        }
    }

    std::string_view read_string(std::string_view field) {
        const std::uint64_t at = in.offset();
        const auto length = in.read<std::uint64_t>(field);
        if (length > in.remaining()) {
            throw in.error(
                field, fmt::format("string of {} bytes", length),
                fmt::format("runs past the end of the file: {} bytes are left", in.remaining()), at,
                "the file is truncated or damaged: download it again (millrace pull --verify)");
        }
        return in.take(length, field);
    }

    GgufType read_type(std::string_view field) {
        const std::uint64_t at = in.offset();
        const auto number = in.read<std::uint32_t>(field);
        if (number > static_cast<std::uint32_t>(GgufType::f64)) {
            throw in.error(field, std::to_string(number), "is not a type of metadata (0 to 12)",
                           at);
        }
        return static_cast<GgufType>(number);
    }

    void read_entry(std::uint64_t index) {
        const std::uint64_t at = in.offset();
        const std::string_view key = read_string(fmt::format("key of metadata {}", index));
        const bool ascii =
            std::all_of(key.begin(), key.end(), [](char c) { return c > 0x20 && c < 0x7f; });
        if (key.empty() || key.size() > kMaxKeyBytes || !ascii) {
            throw in.error(fmt::format("key of metadata {}", index), "'" + printable(key) + "'",
                           "is not 1 to 65535 printable ASCII characters", at);
        }
        const std::string name(key);
        GgufFile::Entry entry{};
        entry.key = key;
        entry.type = entry.element = read_type(name + " (type)");
        entry.count = 1;
        const std::uint64_t start = entry.offset = in.offset();
        if (entry.type == GgufType::array) {
            read_array(name, entry, 1);
        } else {
            skip_value(name, entry.type);
        }
        entry.value = {reinterpret_cast<const char*>(file.bytes_.data()) + start,
                       static_cast<std::size_t>(in.offset() - start)};
        if (!file.entry_by_key_.emplace(key, file.entries_.size()).second) {
            throw in.error(name, {}, "appears twice in the metadata", at);
        }
        file.entries_.push_back(entry);
    }

    void skip_value(const std::string& key, GgufType type) {
        if (type == GgufType::string) {
            read_string(key);
        } else if (type == GgufType::boolean) {
            const std::uint64_t at = in.offset();
            const auto value = in.read<std::uint8_t>(key);
            if (value > 1) throw in.error(key, std::to_string(value), "is not a bool (0 or 1)", at);
        } else {
            in.skip(gguf_type_bytes(type), key);
        }
    }

    void read_array(const std::string& key, GgufFile::Entry& entry, int depth) {
        const std::uint64_t at = in.offset();
        if (depth > kMaxArrayDepth) {
            throw in.error(key, fmt::format("array {} deep", depth),
                           fmt::format("is nested deeper than {}", kMaxArrayDepth), at);
        }
        entry.element = read_type(key + " (element type)");
        entry.count = in.read<std::uint64_t>(key + " (array length)");
        entry.offset = in.offset();
        const std::uint64_t each = entry.element == GgufType::string ? 8
                                   : entry.element == GgufType::array
                                       ? 12
                                       : gguf_type_bytes(entry.element);
        const bool one_by_one = entry.element == GgufType::array ||
                                entry.element == GgufType::string ||
                                entry.element == GgufType::boolean;
        check_count(key + " (array length)", entry.count, each, at + 4,
                    one_by_one ? elements_left : kMaxNumbers);
        if (one_by_one) elements_left -= entry.count;
        if (entry.element == GgufType::array) {
            GgufFile::Entry inner{};
            for (std::uint64_t i = 0; i < entry.count; ++i) read_array(key, inner, depth + 1);
        } else if (one_by_one) {
            for (std::uint64_t i = 0; i < entry.count; ++i) skip_value(key, entry.element);
        } else {
            in.skip(entry.count * each, key);  // no overflow: at most the remaining bytes
        }
    }

    void read_alignment() {
        const auto value = file.get_uint("general.alignment");
        if (!value) return;
        if (*value == 0 || *value > kMaxAlignment || (*value & (*value - 1)) != 0) {
            throw in.error("general.alignment", std::to_string(*value),
                           fmt::format("is not a power of two up to {}", kMaxAlignment),
                           file.find("general.alignment")->offset);
        }
        alignment = *value;
    }

    void read_info(std::uint64_t index) {
        const std::uint64_t at = in.offset();
        const std::string_view name = read_string(fmt::format("name of tensor {}", index));
        if (name.empty() || name.size() > kMaxTensorNameBytes || utf8_fault(name)) {
            throw in.error(fmt::format("name of tensor {}", index), "'" + printable(name) + "'",
                           fmt::format("is not 1 to {} bytes of UTF-8", kMaxTensorNameBytes), at);
        }
        const std::string label = "tensor '" + printable(name) + "'";
        if (!file.tensor_by_name_.emplace(name, file.tensors_.size()).second) {
            throw in.error(label, {}, "appears twice", at);
        }
        const Shape shape = read_shape(label);
        const DType dtype = read_dtype(label, shape);

        const std::uint64_t offset_at = in.offset();
        const auto offset = in.read<std::uint64_t>(label + " offset");
        if (offset % alignment != 0) {
            throw in.error(label + " offset", std::to_string(offset),
                           fmt::format("is not a multiple of the alignment {}", alignment),
                           offset_at);
        }
        FileTensor tensor;
        tensor.name = name;
        tensor.view = Tensor(nullptr, dtype, shape);
        tensor.file = file.path_;
        tensor.offset = offset;  // relative to the data until place_tensors()
        file.tensors_.push_back(std::move(tensor));
    }

    Shape read_shape(const std::string& label) {
        const std::uint64_t at = in.offset();
        const auto rank = in.read<std::uint32_t>(label + " n_dims");
        if (rank < 1 || rank > Shape::kMaxRank) {
            throw in.error(label + " n_dims", std::to_string(rank), "is not 1 to 4", at);
        }
        Shape shape;
        shape.rank = static_cast<int>(rank);
        std::uint64_t count = 1;
        for (std::uint32_t i = 0; i < rank; ++i) {  // innermost first in the file
            const std::uint64_t dim_at = in.offset();
            const auto dim = in.read<std::uint64_t>(label + " dims");
            const auto product = checked_mul(count, dim);
            // A type may take up to 8 bytes per element; the byte count must not wrap.
            if (dim == 0 || !product || *product > kMaxElements) {
                throw in.error(fmt::format("{} dims[{}]", label, i), std::to_string(dim),
                               dim == 0 ? "is zero" : "makes the tensor impossibly large", dim_at);
            }
            count = *product;
            shape.dims[rank - 1 - i] = static_cast<std::int64_t>(dim);
        }
        return shape;
    }

    DType read_dtype(const std::string& label, const Shape& shape) {
        const std::uint64_t at = in.offset();
        const auto number = in.read<std::uint32_t>(label + " type");
        const GgmlType* known = find_ggml_type(number);
        if (!known) {
            throw in.error(label + " type", std::to_string(number), "is not a known tensor type",
                           at);
        }
        if (!known->dtype) {
            throw in.error(label + " type", known->name, "is not supported", at,
                           "use a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, "
                           "Q5_K or Q6_K");
        }
        const DTypeInfo info = dtype_info(*known->dtype);
        const std::int64_t inner = shape[shape.rank - 1];
        if (inner % info.block != 0) {
            throw in.error(label + " dims[0]", std::to_string(inner),
                           fmt::format("is not a multiple of the {} elements of a {} block",
                                       info.block, known->name),
                           at);
        }
        return *known->dtype;
    }

    // The start of the data is known only after the last description.
    void place_tensors() {
        if (file.tensors_.empty()) return;
        const std::uint64_t infos_end = in.offset();
        const std::uint64_t start = (infos_end + alignment - 1) / alignment * alignment;
        for (FileTensor& tensor : file.tensors_) {
            const std::uint64_t bytes = tensor.view.bytes();
            const auto first = checked_add(start, tensor.offset);
            const auto last = first ? checked_add(*first, bytes) : std::nullopt;
            if (!last || *last > in.size()) {
                throw in.error(
                    "tensor '" + printable(tensor.name) + "' offset", std::to_string(tensor.offset),
                    fmt::format("with {} bytes runs past the end of the file of {} bytes", bytes,
                                in.size()),
                    start,
                    "the file is truncated or damaged: download it again (millrace pull --verify)");
            }
            tensor.offset = *first;
            tensor.view.data = const_cast<std::byte*>(file.bytes_.data() + *first);
        }
        check_overlap();
    }

    void check_overlap() {
        std::vector<const FileTensor*> order;
        order.reserve(file.tensors_.size());
        for (const FileTensor& tensor : file.tensors_) order.push_back(&tensor);
        std::sort(order.begin(), order.end(),
                  [](const FileTensor* a, const FileTensor* b) { return a->offset < b->offset; });
        for (std::size_t i = 1; i < order.size(); ++i) {
            const FileTensor& before = *order[i - 1];
            if (before.offset + before.view.bytes() > order[i]->offset) {
                throw in.error("tensor '" + printable(order[i]->name) + "' offset",
                               std::to_string(order[i]->offset),
                               "overlaps tensor '" + printable(before.name) + "'",
                               order[i]->offset);
            }
        }
    }

    GgufFile& file;
    ByteReader in;
    std::uint64_t tensor_count = 0;
    std::uint64_t entry_count = 0;
    std::uint64_t elements_left = kMaxListElements;  // over all lists of the file
    std::uint64_t alignment = 32;
};

GgufFile GgufFile::open_one(const std::string& path) {
    GgufFile file;
    file.maps_.emplace_back(path);
    file.bytes_ = file.maps_.front().bytes();
    file.path_ = path;
    GgufParser(file, file.bytes_).parse();
    return file;
}

GgufFile GgufFile::open(const std::string& path) {
    GgufFile file = open_one(path);
    if (const std::uint64_t count = file.get_uint("split.count").value_or(1); count > 1) {
        file.join_parts(count);
    }
    return file;
}

void GgufFile::join_parts(std::uint64_t count) {
    const std::string all = fmt::format("-of-{:05}.gguf", count);
    const std::string first = "-00001" + all;
    const auto refuse = [](const std::string& file, std::string problem, std::string remedy) {
        throw Error::input({.file = file,
                            .field = "split.count",
                            .problem = std::move(problem),
                            .remedy = std::move(remedy)});
    };
    if (!path_.ends_with(first) || get_uint("split.no").value_or(0) != 0) {
        refuse(
            path_, fmt::format("is a part of a model in {} files, and not the first", count),
            fmt::format("give the one whose name ends with {}, with the others beside it", first));
    }
    const std::string stem = path_.substr(0, path_.size() - first.size());
    for (std::uint64_t part = 2; part <= count; ++part) {
        GgufFile other = open_one(fmt::format("{}-{:05}{}", stem, part, all));
        if (other.get_uint("split.no") != part - 1 || other.get_uint("split.count") != count) {
            refuse(other.path_, fmt::format("is not part {} of {}", part, count),
                   "the parts belong to different models");
        }
        std::ranges::move(other.tensors_, std::back_inserter(tensors_));
        maps_.push_back(std::move(other.maps_.front()));
    }
    tensor_by_name_.clear();
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        if (!tensor_by_name_.emplace(tensors_[i].name, i).second) {
            refuse(tensors_[i].file,
                   "has tensor '" + printable(tensors_[i].name) + "', which another part has",
                   "the parts belong to different models");
        }
    }
    const auto wanted = get_uint("split.tensors.count");
    if (wanted && *wanted != tensors_.size()) {
        refuse(
            path_,
            fmt::format("the parts have {} tensors, and should have {}", tensors_.size(), *wanted),
            "the parts belong to different models, or one is damaged: download them again "
            "(millrace pull --verify)");
    }
}

GgufFile GgufFile::parse(std::span<const std::byte> bytes, std::string name) {
    GgufFile file;
    file.bytes_ = bytes;
    file.path_ = std::move(name);
    GgufParser(file, file.bytes_).parse();
    return file;
}

}  // namespace mr::formats
