#include "decode/eval.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iterator>
#include <utility>

#include "core/error.h"
#include "text/tokenizer.h"

namespace mr::decode {
namespace {

// A stretch of a document that is predicted from its own beginning.
struct Window {
    std::size_t document = 0, index = 0;  // which, and which part of it
    std::vector<std::int32_t> tokens;
    std::uint64_t text_done = 0;  // bytes of the text up to its end, for the progress
    std::size_t done = 0;         // tokens that were fed
    model::SeqId seq = -1;
    double nats = 0;
};

// Feeds windows side by side and adds up the nll of their tokens[1..]. A sum in f64, in order: it
// does not depend on how a window was cut into passes or on what shared them.
class Evaluation {
  public:
    explicit Evaluation(model::Engine& engine)
        : engine_(engine),
          most_rows_(static_cast<std::size_t>(
              std::min(engine.options().max_logits, engine.options().max_batch))) {
        MR_CHECK(static_cast<std::int64_t>(most_rows_) >=
                     std::min(engine.cut(), engine.options().context - 1),
                 "an evaluation has logits for a piece of a window");
    }
    ~Evaluation() {
        for (const Window& window : open_) engine_.cache().close(window.seq);
    }
    Evaluation(const Evaluation&) = delete;
    Evaluation& operator=(const Evaluation&) = delete;

    // Windows with nothing to predict are not fed.
    template <typename Done>
    void add(Window window, Done&& done) {
        if (window.tokens.size() < 2) return done(window);
        while (open_.size() >= static_cast<std::size_t>(engine_.options().max_sequences) ||
               !admit(window)) {
            pass(done);
        }
        open_.push_back(std::move(window));
    }
    template <typename Done>
    void finish(Done&& done) {
        while (!open_.empty()) pass(done);
    }

  private:
    bool admit(Window& window) {
        window.seq = engine_.cache().open();
        // Its pages are not shared, so those that no token sees any more are given back.
        if (engine_.try_reserve(window.seq, 0,
                                static_cast<std::int64_t>(window.tokens.size()) - 1)) {
            return true;
        }
        engine_.cache().close(window.seq);
        return false;
    }

    template <typename Done>
    void pass(Done&& done) {
        items_.clear();
        counts_.clear();
        targets_.clear();
        const auto cut = static_cast<std::size_t>(engine_.cut());
        for (const Window& window : open_) {
            const std::size_t fed = window.tokens.size() - 1;
            std::size_t count = std::min(most_rows_ - targets_.size(), fed - window.done);
            if (window.done + count < fed) count = (window.done + count) / cut * cut - window.done;
            if (count == 0) break;
            const auto tokens = std::span(window.tokens);
            items_.push_back(model::prompt_item(window.seq, tokens.subspan(window.done, count),
                                                static_cast<std::int64_t>(fed),
                                                model::BatchItem::Logits::all));
            if (cut == 1) items_.back().form = model::Form::prompt;
            const auto next = tokens.subspan(window.done + 1, count);
            targets_.insert(targets_.end(), next.begin(), next.end());
            counts_.push_back(count);
        }
        const Tensor logits = engine_.submit(items_);
        nll_.resize(targets_.size());
        engine_.cross_entropy(nll_, logits, targets_);
        std::size_t row = 0;
        for (std::size_t i = 0; i < counts_.size(); ++i) {
            for (std::size_t j = 0; j < counts_[i]; ++j) open_[i].nats += nll_[row++];
            open_[i].done += counts_[i];
        }
        const auto over = [](const Window& window) {
            return window.done + 1 == window.tokens.size();
        };
        const auto ended = std::stable_partition(open_.begin(), open_.end(), std::not_fn(over));
        const std::vector<Window> windows(std::make_move_iterator(ended),
                                          std::make_move_iterator(open_.end()));
        open_.erase(ended, open_.end());
        for (const Window& window : windows) engine_.cache().close(window.seq);
        for (const Window& window : windows) done(window);  // may throw
    }

    model::Engine& engine_;
    std::size_t most_rows_;
    std::vector<Window> open_;
    std::vector<model::BatchItem> items_;
    std::vector<std::size_t> counts_;  // tokens of each item
    std::vector<std::int32_t> targets_;
    std::vector<double> nll_;
};

void require_finite(const model::Engine& engine, double nats) {
    if (std::isfinite(nats)) return;
    throw Error::input({.file = engine.model().source,
                        .field = "loss",
                        .value = std::to_string(nats),
                        .problem = "the model's logits are not finite",
                        .remedy = "the weights are damaged: convert or download them again; "
                                  "--check-nan names the layer where it begins"});
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
    // A piece of a window has kCut rows.
    return static_cast<int>(
        std::clamp<std::int64_t>(kBytes / (std::int64_t{4} * spec.vocab), model::kCut, 256));
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
    result.documents = static_cast<std::int64_t>(documents.size());
    // Windows end in another order than they begin: what each gave is added up when all are known.
    std::vector<std::vector<double>> window_nats(documents.size());
    std::uint64_t text_done = 0;
    Evaluation evaluation(engine);
    const auto done = [&](const Window& window) {
        require_finite(engine, window.nats);
        window_nats[window.document][window.index] = window.nats;
        if (progress) progress("evaluating", window.text_done, text.size());
    };
    for (std::size_t d = 0; d < documents.size(); ++d) {
        const std::string_view document = documents[d];
        // Special tokens spelled out in the text are text here: nothing is parsed.
        std::vector<std::int32_t> ids =
            tokenizer->encode(document, {.add_special = false, .parse_special = false});
        const std::size_t lead = tokenizer->bos() ? 1 : 0;
        const std::size_t step = context - lead;
        for (std::size_t i = 0; i < ids.size(); i += step) {
            Window window;
            window.document = d;
            window.index = window_nats[d].size();
            window_nats[d].push_back(0);
            if (lead) window.tokens.push_back(*tokenizer->bos());
            const std::size_t end = std::min(ids.size(), i + step);
            window.tokens.insert(window.tokens.end(), ids.begin() + static_cast<std::ptrdiff_t>(i),
                                 ids.begin() + static_cast<std::ptrdiff_t>(end));
            for (std::size_t j = 1; j < window.tokens.size(); ++j) {
                result.bytes +=
                    static_cast<std::int64_t>(tokenizer->piece(window.tokens[j]).size());
            }
            if (options.ends && end == ids.size()) window.tokens.push_back(*tokenizer->eos());
            result.tokens += static_cast<std::int64_t>(window.tokens.size()) - 1;
            window.text_done = text_done + document.size() * end / ids.size();
            evaluation.add(std::move(window), done);
            if (!options.split.empty()) {
                result.cut += end < ids.size();
                break;
            }
        }
        text_done += document.size();
    }
    evaluation.finish(done);
    double sum = 0;
    for (const std::vector<double>& windows : window_nats) {
        double nats = 0;
        for (const double window : windows) nats += window;
        sum += nats;
        result.document_nats.push_back(nats);
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
