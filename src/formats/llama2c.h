// llama2.c's checkpoints (`model.bin`): version 0 (legacy, no magic), 1 (f32) and 2 (int8 groups).
//
// Versions 0 and 1 give f32 tensors that point into the map. Version 2 stores int8 groups with an
// f32 scale each; GGUF's q8_0 would round that scale to f16, so the tensors are expanded to f32 in
// memory this object owns: exact, at four bytes per element.
//
// The tensors are named as in llama2.c's model.py, without ".weight":
//   tok_embeddings                  [vocab_size, dim]
//   layers.N.attention_norm         [dim]
//   layers.N.attention.wq           [dim, dim]
//   layers.N.attention.wk, .wv      [n_kv_heads * head_dim, dim]
//   layers.N.attention.wo           [dim, dim]
//   layers.N.ffn_norm               [dim]
//   layers.N.feed_forward.w1, .w3   [hidden_dim, dim]     (w1 is the gate, w3 the up projection)
//   layers.N.feed_forward.w2        [dim, hidden_dim]
//   norm                            [dim]
//   output                          [vocab_size, dim]     (only if the classifier is not shared)
// The rotary tables that version 0 carries are skipped: they follow from the shape.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tensor_file.h"

namespace mr::formats {

// A layer takes 9 tensors of memory here, and none on disk: a sparse file may claim any number.
inline constexpr std::int64_t kMaxLlama2cLayers = 1 << 12;

struct Llama2cHeader {
    int version = 0;
    std::int64_t dim = 0;
    std::int64_t hidden_dim = 0;
    std::int64_t n_layers = 0;
    std::int64_t n_heads = 0;
    std::int64_t n_kv_heads = 0;
    std::int64_t vocab_size = 0;
    std::int64_t seq_len = 0;
    bool shared_classifier = true;
    std::int64_t group_size = 0;  // version 2 only

    std::int64_t head_dim() const { return dim / n_heads; }
    std::int64_t kv_dim() const { return n_kv_heads * head_dim(); }
};

class Llama2cFile {
  public:
    static Llama2cFile open(const std::string& path);
    static Llama2cFile parse(std::span<const std::byte> bytes, std::string name);

    const Llama2cHeader& header() const { return header_; }
    const std::vector<FileTensor>& tensors() const { return tensors_; }
    const FileTensor* find_tensor(std::string_view name) const;
    const std::string& path() const { return path_; }
    std::span<const MappedFile> maps() const { return {&map_, map_.bytes().empty() ? 0u : 1u}; }

  private:
    friend struct Llama2cParser;

    MappedFile map_;
    std::string path_;
    Llama2cHeader header_;
    std::vector<FileTensor> tensors_;
    std::map<std::string, std::size_t, std::less<>> tensor_by_name_;
    std::vector<std::unique_ptr<float[]>> expanded_;  // version 2
};

}  // namespace mr::formats
