// Millrace as a library: open a model, generate text, count tokens, measure perplexity.
//
//     millrace::Model model = millrace::Model::load("model.gguf");
//     model.generate("Once upon a time", {.max_tokens = 100}, [](std::string_view text) {
//         std::cout << text << std::flush;
//         return true;  // false stops
//     });
//
// Every function throws millrace::Error and nothing else, except what a callback throws. A Model
// may be moved; it may be used by one thread at a time (it has its own worker threads).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// One line: file, field and value, what went wrong, and what to do.
class Error : public std::runtime_error {
  public:
    enum class Kind { input = 1, usage = 2, device = 3 };

    Error(Kind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
    Kind kind() const { return kind_; }

  private:
    Kind kind_;
};

struct LoadOptions {
    std::string tokenizer{};   // a path, if the model has none of its own
    int threads = 0;           // 0: all cores
    std::int64_t context = 0;  // positions; 0: as many as the model was trained for
    bool gpu = false;          // compute on the GPU; throws Error (device) if there is none
    // Keys of the model's configuration to accept although the engine does not know them.
    std::vector<std::string> ignore_keys{};
};

struct GenerateOptions {
    int max_tokens = 256;
    float temperature = 0.8f;  // 0: always the most probable token
    int top_k = 40;            // 0: all
    float top_p = 0.95f;       // 1: all
    float min_p = 0.05f;       // 0: all
    float repeat_penalty = 1.0f;
    std::uint64_t seed = 0;           // same model, prompt, options and seed: same text
    std::vector<std::string> stop{};  // generation ends before any of these
};

struct Generation {
    std::string text;                  // without the prompt
    std::vector<std::int32_t> tokens;  // the text's token ids
    std::string stop_reason;           // "length", "end_of_text", "stop_string", "context_full" or
                                       // "cancelled"
    std::int64_t prompt_tokens = 0;
    double tokens_per_second = 0;  // of decode: without the first token
    double bytes_per_second = 0;   // bytes read from memory in decode
    double bytes_per_token = 0;
};

struct Evaluation {
    std::int64_t tokens = 0;  // number of predicted tokens
    double nll = 0;           // mean negative log-likelihood per token, natural log
    double perplexity = 0;
};

struct ModelInfo {
    std::string family;  // "llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt-neox"
    std::string format;  // file format
    std::uint64_t parameters = 0;
    int layers = 0;
    int dim = 0;
    int vocab = 0;
    std::int64_t context = 0;  // positions this Model holds
};

class Model {
  public:
    // Called with text as it is generated, in whole UTF-8 characters. Returning false stops. Its
    // exceptions pass through generate() unchanged.
    using OnText = std::function<bool(std::string_view)>;

    // Opens a GGUF file, a Hugging Face folder, a llama2.c .bin, or random:SHAPE[:TYPE].
    static Model load(const std::string& source, const LoadOptions& options = {});
    ~Model();
    Model(Model&&) noexcept;
    Model& operator=(Model&&) noexcept;

    ModelInfo info() const;
    // Continues `prompt`; an empty one starts a text. The keys and values of the prefix shared with
    // the last prompt are reused.
    Generation generate(std::string_view prompt, const GenerateOptions& options = {},
                        const OnText& on_text = {});
    // `special`: adds BOS and the like, and parses special tokens that appear in the text.
    std::vector<std::int32_t> tokenize(std::string_view text, bool special = true) const;
    // The text of the ids, without special tokens.
    std::string detokenize(std::span<const std::int32_t> tokens) const;
    // How well the model predicts a text, which is cut into documents at `split` if not empty.
    Evaluation evaluate(std::string_view text, const std::string& split = {});

  private:
    struct Impl;
    explicit Model(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

// "0.2.0" for a release, "0.2.0+37.g61c3958ab" for the 37th commit after it.
const char* version();

}  // namespace millrace
