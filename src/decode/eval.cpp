#include "decode/eval.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/error.h"
#include "text/tokenizer.h"

namespace mr::decode {
namespace {

// Sum of nll over tokens[1..], fed as one sequence. A sum in f64, in order: the result does not
// depend on how the sequence was cut into passes.
double sequence_nll(model::Engine& engine, std::span<const std::int32_t> tokens) {
    const model::SeqId seq = engine.cache().open();
    const auto rows =
        static_cast<std::size_t>(std::min(engine.options().max_logits, engine.options().max_batch));
    std::vector<double> nll(rows);
    double sum = 0;
    try {
        for (std::size_t i = 0; i + 1 < tokens.size(); i += rows) {
            const std::size_t count = std::min(rows, tokens.size() - 1 - i);
            const model::BatchItem item{seq, tokens.subspan(i, count),
                                        model::BatchItem::Logits::all};
            const Tensor logits = engine.forward({&item, 1});
            engine.cross_entropy({nll.data(), count}, logits, tokens.subspan(i + 1, count));
            for (std::size_t j = 0; j < count; ++j) sum += nll[j];
        }
    } catch (...) {
        engine.cache().close(seq);
        throw;
    }
    engine.cache().close(seq);
    if (!std::isfinite(sum)) {
        throw Error::input({.file = engine.model().source,
                            .field = "loss",
                            .value = std::to_string(sum),
                            .problem = "the model's logits are not finite",
                            .remedy = "the weights are damaged: convert or download them again; "
                                      "--check-nan names the layer where it begins"});
    }
    return sum;
}

}  // namespace

double EvalResult::perplexity() const { return std::exp(nll); }

double EvalResult::bits_per_byte() const {
    return bytes > 0
               ? nll * static_cast<double>(tokens) / static_cast<double>(bytes) / std::log(2.0)
               : 0;
}

double EvalResult::nats_per_document() const {
    return documents > 0 ? nll * static_cast<double>(tokens) / static_cast<double>(documents) : 0;
}

int eval_logit_rows(const model::ModelSpec& spec) {
    constexpr std::int64_t kBytes = std::int64_t{64} << 20;
    return static_cast<int>(
        std::clamp<std::int64_t>(kBytes / (std::int64_t{4} * spec.vocab), 1, 256));
}

std::vector<std::string_view> split_documents(std::string_view text, const EvalOptions& options) {
    std::vector<std::string_view> out;
    while (!text.empty() && (options.limit <= 0 || static_cast<int>(out.size()) < options.limit)) {
        const std::size_t end =
            options.split.empty() ? std::string_view::npos : text.find(options.split);
        std::string_view document = text.substr(0, end);
        text.remove_prefix(end == std::string_view::npos ? text.size()
                                                         : end + options.split.size());
        if (!options.split.empty()) {
            document.remove_prefix(
                std::min(document.find_first_not_of(" \t\r\n"), document.size()));
            if (document.ends_with('\n')) document.remove_suffix(1);
        }
        if (!document.empty()) out.push_back(document);
    }
    return out;
}

EvalResult evaluate(model::Engine& engine, std::string_view text, const EvalOptions& options,
                    const Progress& progress) {
    const text::Tokenizer* tokenizer = engine.model().tokenizer.get();
    MR_CHECK(tokenizer != nullptr, "evaluation needs a tokenizer");
    const auto context = static_cast<std::size_t>(engine.options().context);
    if (context < 2) {
        throw Error::input({.field = "--ctx",
                            .value = std::to_string(context),
                            .problem = "has no room for a token and the one that follows it",
                            .remedy = "give at least 2"});
    }
    const std::vector<std::string_view> documents = split_documents(text, options);
    if (options.ends && !tokenizer->eos()) {
        throw Error::input({.file = engine.model().source,
                            .problem = "its tokenizer has no token that ends a text",
                            .remedy = "leave --ends away"});
    }

    EvalResult result;
    const Ledger before = engine.ledger();
    const auto start = std::chrono::steady_clock::now();
    std::uint64_t done = 0;
    double sum = 0;
    for (std::string_view document : documents) {
        // Special tokens spelled out in the text are text here: nothing is parsed.
        std::vector<std::int32_t> ids =
            tokenizer->encode(document, {.add_special = false, .parse_special = false});
        const std::size_t lead = tokenizer->bos() ? 1 : 0;
        const std::size_t step = context - lead;
        double nats = 0;
        for (std::size_t i = 0; i < ids.size(); i += step) {
            std::vector<std::int32_t> window;
            if (lead) window.push_back(*tokenizer->bos());
            const std::size_t end = std::min(ids.size(), i + step);
            window.insert(window.end(), ids.begin() + static_cast<std::ptrdiff_t>(i),
                          ids.begin() + static_cast<std::ptrdiff_t>(end));
            for (std::size_t j = 1; j < window.size(); ++j) {
                result.bytes += static_cast<std::int64_t>(tokenizer->piece(window[j]).size());
            }
            if (options.ends && end == ids.size()) window.push_back(*tokenizer->eos());
            nats += sequence_nll(engine, window);
            result.tokens += static_cast<std::int64_t>(window.size()) - 1;
            if (progress) {
                progress("evaluating", done + document.size() * end / ids.size(), text.size());
            }
            if (!options.split.empty()) {
                result.cut += end < ids.size();
                break;
            }
        }
        sum += nats;
        result.document_nats.push_back(nats);
        done += document.size();
        ++result.documents;
    }
    if (result.tokens == 0) {
        throw Error::input({.field = "text",
                            .problem = "there is no token to predict in it",
                            .remedy = "give a text of at least two tokens"});
    }
    result.nll = sum / static_cast<double>(result.tokens);
    result.phase = {result.tokens,
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
                    engine.ledger().since(before)};
    return result;
}

}  // namespace mr::decode
