#include "formats/llama2c.h"

#include <fmt/format.h>

#include <optional>

#include "core/arena.h"
#include "core/memory.h"
#include "formats/bytes.h"

namespace mr::formats {
namespace {

constexpr std::uint32_t kVersionedMagic = 0x616b3432;  // "ak42"
constexpr std::uint64_t kHeaderBytes = 256;            // of versions 1 and 2
constexpr std::int64_t kMaxGroup = 1 << 20;

}  // namespace

// Reads a whole file into a Llama2cFile. The sizes of all tensors follow from the header, so their
// sum is compared with the file's length before any tensor is made.
struct Llama2cParser {
    Llama2cParser(Llama2cFile& file_, std::span<const std::byte> bytes_)
        : file(file_), header(file_.header_), bytes(bytes_), in(bytes_, file_.path_) {}

    void parse() {
        read_header();
        check_header();
        check_length();
        check_memory();
        if (header.version == 0) {
            read_legacy();
        } else {
            read_norms_first();
        }
        for (std::size_t i = 0; i < file.tensors_.size(); ++i) {
            file.tensor_by_name_.emplace(file.tensors_[i].name, i);
        }
    }

    std::int64_t read_int(const char* field) { return in.read<std::int32_t>(field); }

    void read_header() {
        const auto first = in.read<std::int32_t>("magic or dim");
        if (static_cast<std::uint32_t>(first) != kVersionedMagic) {
            header.version = 0;
            header.dim = first;
            read_sizes();
            header.shared_classifier = header.vocab_size > 0;
            if (header.vocab_size < 0) header.vocab_size = -header.vocab_size;  // 64 bits wide
            return;
        }
        const std::int64_t version = read_int("version");
        if (version != 1 && version != 2) {
            throw in.error("version", std::to_string(version), "is not supported: 0, 1 and 2 are",
                           4, "export the model again with llama2.c's export.py");
        }
        header.version = static_cast<int>(version);
        header.dim = read_int("dim");
        read_sizes();
        const auto shared = in.read<std::uint8_t>("shared_classifier");
        if (shared > 1) {
            throw in.error("shared_classifier", std::to_string(shared), "is not 0 or 1",
                           in.offset() - 1);
        }
        header.shared_classifier = shared == 1;
        if (version == 2) header.group_size = read_int("group_size");
        in.skip(kHeaderBytes - in.offset(), "header");
    }

    void read_sizes() {
        header.hidden_dim = read_int("hidden_dim");
        header.n_layers = read_int("n_layers");
        header.n_heads = read_int("n_heads");
        header.n_kv_heads = read_int("n_kv_heads");
        header.vocab_size = read_int("vocab_size");
        header.seq_len = read_int("seq_len");
    }

    void check_header() {
        const std::uint64_t first = header.version == 0 ? 0 : 8;  // offset of dim
        const auto positive = [&](const char* field, std::int64_t value, std::uint64_t index) {
            if (value > 0) return;
            throw in.error(field, std::to_string(value), "is not positive", first + 4 * index,
                           "this is not a llama2.c model, or it is damaged");
        };
        positive("dim", header.dim, 0);
        positive("hidden_dim", header.hidden_dim, 1);
        positive("n_layers", header.n_layers, 2);
        positive("n_heads", header.n_heads, 3);
        positive("n_kv_heads", header.n_kv_heads, 4);
        positive("vocab_size", header.vocab_size, 5);
        positive("seq_len", header.seq_len, 6);
        if (header.n_layers > kMaxLlama2cLayers) {
            throw in.error("n_layers", std::to_string(header.n_layers),
                           fmt::format("is more than {}, the most that is read", kMaxLlama2cLayers),
                           first + 8, "this is not a llama2.c model, or it is damaged");
        }
        if (header.dim % header.n_heads != 0 || header.head_dim() % 2 != 0) {
            throw in.error(
                "n_heads", std::to_string(header.n_heads),
                fmt::format("does not divide dim = {} into heads of even size", header.dim),
                first + 12, "this is not a llama2.c model, or it is damaged");
        }
        if (header.n_heads % header.n_kv_heads != 0) {
            throw in.error("n_kv_heads", std::to_string(header.n_kv_heads),
                           fmt::format("does not divide n_heads = {}", header.n_heads), first + 16,
                           "this is not a llama2.c model, or it is damaged");
        }
        if (header.version != 2) return;
        if (header.group_size < 1 || header.group_size > kMaxGroup) {
            throw in.error("group_size", std::to_string(header.group_size),
                           fmt::format("is not 1 to {}", kMaxGroup), 37);
        }
        for (const std::int64_t count :
             {header.dim * header.dim, header.dim * header.kv_dim(), header.dim * header.hidden_dim,
              header.dim * header.vocab_size}) {  // products of 32-bit numbers cannot overflow
            if (count % header.group_size != 0) {
                throw in.error("group_size", std::to_string(header.group_size),
                               fmt::format("does not divide the {} weights of a tensor", count),
                               37);
            }
        }
    }

    // Bytes of a weight of `count` elements; norms are f32 in every version.
    std::optional<std::uint64_t> weight_bytes(std::uint64_t count) const {
        if (header.version != 2) return checked_mul(count, 4);
        const auto scales = checked_mul(count / static_cast<std::uint64_t>(header.group_size), 4);
        return scales ? checked_add(count, *scales) : std::nullopt;
    }

    void check_length() {
        const auto u = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
        bool fits = true;
        std::uint64_t total = in.offset();
        const auto add = [&](std::uint64_t times, std::optional<std::uint64_t> each) {
            const auto bytes_ = each ? checked_mul(times, *each) : std::nullopt;
            const auto sum = bytes_ ? checked_add(total, *bytes_) : std::nullopt;
            fits = fits && sum;
            if (fits) total = *sum;
        };
        const std::uint64_t dim = u(header.dim);
        add(2 * u(header.n_layers) + 1, 4 * dim);  // norms
        add(header.shared_classifier ? 1 : 2, weight_bytes(u(header.vocab_size) * dim));
        add(2 * u(header.n_layers), weight_bytes(dim * dim));                 // wq, wo
        add(2 * u(header.n_layers), weight_bytes(dim * u(header.kv_dim())));  // wk, wv
        add(3 * u(header.n_layers), weight_bytes(dim * u(header.hidden_dim)));
        if (header.version == 0) add(u(header.seq_len), 4 * u(header.head_dim()));
        if (!fits || total != in.size()) {
            const std::string expected = fits ? std::to_string(total) : "more than 2^64";
            throw in.error(
                "file length", std::to_string(in.size()),
                fmt::format("is not the {} bytes of a version {} model with dim {}, hidden_dim {}, "
                            "n_layers {}, n_heads {}, n_kv_heads {}, vocab_size {}, seq_len {}",
                            expected, header.version, header.dim, header.hidden_dim,
                            header.n_layers, header.n_heads, header.n_kv_heads, header.vocab_size,
                            header.seq_len),
                0, "the file is truncated or damaged, or is not a llama2.c model");
        }
    }

    // Version 2 is expanded to four times its bytes.
    void check_memory() const {
        if (header.version != 2) return;
        MemoryPlan plan;
        plan.add("weights, expanded to f32", 4 * in.size());
        plan.require(available_memory_bytes(),
                     "export the model as version 1 (f32), which is used in place");
    }

    void add_f32(std::string name, const Shape& shape) {
        FileTensor tensor;
        tensor.name = std::move(name);
        tensor.file = file.path_;
        tensor.offset = in.offset();
        tensor.view = Tensor(const_cast<std::byte*>(bytes.data() + in.offset()), DType::f32, shape);
        in.skip(tensor.view.bytes(), tensor.name);
        file.tensors_.push_back(std::move(tensor));
    }

    // Version 2: int8 values, then one f32 scale for every `group_size` of them.
    void add_int8(std::string name, const Shape& shape) {
        const auto count = static_cast<std::uint64_t>(shape.count());
        const auto group = static_cast<std::uint64_t>(header.group_size);
        const std::uint64_t offset = in.offset();
        const std::string_view values = in.take(count, name);
        const std::string_view scales = in.take(count / group * sizeof(float), name);
        auto expanded = std::make_unique_for_overwrite<float[]>(count);
        for (std::uint64_t g = 0; g < count / group; ++g) {
            float scale;
            std::memcpy(&scale, scales.data() + g * sizeof scale, sizeof scale);
            for (std::uint64_t i = g * group; i < (g + 1) * group; ++i) {
                expanded[i] = static_cast<float>(static_cast<signed char>(values[i])) * scale;
            }
        }
        FileTensor tensor;
        tensor.name = std::move(name);
        tensor.file = file.path_;
        tensor.offset = offset;
        tensor.view = Tensor(expanded.get(), DType::f32, shape);
        file.expanded_.push_back(std::move(expanded));
        file.tensors_.push_back(std::move(tensor));
    }

    void add_weight(std::string name, const Shape& shape) {
        if (header.version == 2) {
            add_int8(std::move(name), shape);
        } else {
            add_f32(std::move(name), shape);
        }
    }

    void add_layers_norm(const char* name) {
        for (std::int64_t i = 0; i < header.n_layers; ++i) {
            add_f32(fmt::format("layers.{}.{}", i, name), {header.dim});
        }
    }

    void add_layers_weight(const char* name, std::int64_t rows, std::int64_t cols) {
        for (std::int64_t i = 0; i < header.n_layers; ++i) {
            add_weight(fmt::format("layers.{}.{}", i, name), {rows, cols});
        }
    }

    void add_attention() {
        add_layers_weight("attention.wq", header.dim, header.dim);
        add_layers_weight("attention.wk", header.kv_dim(), header.dim);
        add_layers_weight("attention.wv", header.kv_dim(), header.dim);
        add_layers_weight("attention.wo", header.dim, header.dim);
    }

    void add_feed_forward() {
        add_layers_weight("feed_forward.w1", header.hidden_dim, header.dim);
        add_layers_weight("feed_forward.w2", header.dim, header.hidden_dim);
        add_layers_weight("feed_forward.w3", header.hidden_dim, header.dim);
    }

    void add_output() {
        if (!header.shared_classifier) add_weight("output", {header.vocab_size, header.dim});
    }

    void read_legacy() {
        add_weight("tok_embeddings", {header.vocab_size, header.dim});
        add_layers_norm("attention_norm");
        add_attention();
        add_layers_norm("ffn_norm");
        add_feed_forward();
        add_f32("norm", {header.dim});
        // Rotary tables, cosines then sines: [seq_len, head_dim / 2] each.
        in.skip(4 * static_cast<std::uint64_t>(header.seq_len * header.head_dim()), "freq_cis");
        add_output();
    }

    void read_norms_first() {
        add_layers_norm("attention_norm");
        add_layers_norm("ffn_norm");
        add_f32("norm", {header.dim});
        add_weight("tok_embeddings", {header.vocab_size, header.dim});
        add_attention();
        add_feed_forward();
        add_output();
    }

    Llama2cFile& file;
    Llama2cHeader& header;
    std::span<const std::byte> bytes;
    ByteReader in;
};

Llama2cFile Llama2cFile::open(const std::string& path) {
    Llama2cFile file;
    file.map_ = MappedFile(path);
    file.path_ = path;
    Llama2cParser(file, file.map_.bytes()).parse();
    return file;
}

Llama2cFile Llama2cFile::parse(std::span<const std::byte> bytes, std::string name) {
    Llama2cFile file;
    file.path_ = std::move(name);
    Llama2cParser(file, bytes).parse();
    return file;
}

const FileTensor* Llama2cFile::find_tensor(std::string_view name) const {
    const auto found = tensor_by_name_.find(name);
    return found == tensor_by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace mr::formats
