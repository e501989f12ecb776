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
    std::int64_t first = 0;       // position of tokens[0] in the document
    std::size_t skip = 1;         // tokens before the first that counts
    bool ends = false;            // the last token is the end of the document, no text
    std::uint64_t text_done = 0;  // bytes of the text up to its end, for the progress
    std::size_t done = 0;         // tokens that were fed
    model::SeqId seq = -1;
    double nats = 0;
};

// Feeds windows side by side and adds up the nll of their tokens[skip..]. A sum in f64, in order:
// it does not depend on how a window was cut into passes or on what shared them.
class Evaluation {
  public:
    Evaluation(model::Engine& engine, const model::Stream& stream,
               std::vector<EvalResult::Bucket>& curve)
        : engine_(engine),
          stream_(stream),
          curve_(curve),
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
        engine_.cache().set_stream(window.seq, stream_);
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
        const auto most_tokens = static_cast<std::size_t>(engine_.options().max_batch);
        std::size_t in_pass = 0;
        for (const Window& window : open_) {
            const std::size_t fed = window.tokens.size() - 1;
            const bool last_only = window.skip == fed;
            std::size_t count = std::min(most_tokens - in_pass, fed - window.done);
            if (!last_only) count = std::min(count, most_rows_ - targets_.size());
            if (last_only && targets_.size() == most_rows_) break;
            if (window.done + count < fed) count = (window.done + count) / cut * cut - window.done;
            if (count == 0) break;
            in_pass += count;
            const auto tokens = std::span(window.tokens);
            const bool ends = window.done + count == fed;
            items_.push_back(model::prompt_item(window.seq, tokens.subspan(window.done, count),
                                                static_cast<std::int64_t>(fed),
                                                !last_only ? model::BatchItem::Logits::all
                                                : ends     ? model::BatchItem::Logits::last
                                                           : model::BatchItem::Logits::none));
            if (cut == 1) items_.back().form = model::Form::prompt;
            const std::size_t first = last_only ? fed : window.done + 1;
            const auto next = last_only && !ends ? std::span<const std::int32_t>()
                                                 : std::span<const std::int32_t>(tokens).subspan(
                                                       first, window.done + count + 1 - first);
            targets_.insert(targets_.end(), next.begin(), next.end());
            counts_.push_back(count);
        }
        const Tensor logits = engine_.submit(items_);
        nll_.resize(targets_.size());
        if (!targets_.empty()) engine_.cross_entropy(nll_, logits, targets_);
        std::size_t row = 0;
        for (std::size_t i = 0; i < counts_.size(); ++i) {
            Window& window = open_[i];
            const std::size_t fed = window.tokens.size() - 1, end = window.done + counts_[i];
            if (window.skip != fed) {
                for (std::size_t t = window.done + 1; t <= end; ++t)
                    add_nats(window, t, nll_[row++]);
            } else if (end == fed) {
                add_nats(window, fed, nll_[row++]);
            }
            window.done = end;
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

    void add_nats(Window& window, std::size_t token, double nats) {
        if (token < window.skip) return;
        window.nats += nats;
        const std::int64_t position = window.first + static_cast<std::int64_t>(token);
        const auto bucket = static_cast<std::size_t>(position / EvalResult::kCurveStep);
        if (curve_.size() <= bucket) curve_.resize(bucket + 1);
        ++curve_[bucket].tokens;
        curve_[bucket].nats += nats;
    }

    model::Engine& engine_;
    const model::Stream stream_;
    std::vector<EvalResult::Bucket>& curve_;
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

// Consecutive windows of the context's length, or the first of them where documents are split.
// Returns whether the document was cut.
template <typename Add>
bool add_windows(const std::vector<std::int32_t>& ids, const text::Tokenizer& tokenizer,
                 std::size_t context, const EvalOptions& options, Add&& add) {
    const std::size_t lead = tokenizer.bos() ? 1 : 0;
    const std::size_t step = context - lead;
    for (std::size_t i = 0; i < ids.size(); i += step) {
        Window window;
        if (lead) window.tokens.push_back(*tokenizer.bos());
        const std::size_t end = std::min(ids.size(), i + step);
        window.tokens.insert(window.tokens.end(), ids.begin() + static_cast<std::ptrdiff_t>(i),
                             ids.begin() + static_cast<std::ptrdiff_t>(end));
        window.ends = options.ends && end == ids.size();
        if (window.ends) window.tokens.push_back(*tokenizer.eos());
        add(std::move(window), end);
        if (!options.split.empty()) return end < ids.size();
    }
    return false;
}

// The whole document in one sequence; or, to recompute, a window for each token. Returns the tokens
// that the last one did not see.
template <typename Add>
std::int64_t add_streams(std::vector<std::int32_t> ids, const text::Tokenizer& tokenizer,
                         const EvalOptions& options, Add&& add) {
    if (ids.empty()) return 0;
    const std::size_t count = ids.size();  // without what is put around them
    if (tokenizer.bos()) ids.insert(ids.begin(), *tokenizer.bos());
    if (options.ends) ids.push_back(*tokenizer.eos());
    const auto seen = static_cast<std::size_t>(options.stream.sinks) +
                      static_cast<std::size_t>(options.stream.window);
    const auto fed = ids.size() - 1;
    const auto evicted = static_cast<std::int64_t>(fed > seen ? fed - seen : 0);
    if (options.mode != ContextMode::recompute) {
        Window window;
        window.tokens = std::move(ids);
        window.ends = options.ends;
        add(std::move(window), count);
        return evicted;
    }
    const std::size_t all = fed;
    const std::size_t samples =
        options.sample > 0 ? std::min(all, static_cast<std::size_t>(options.sample)) : all;
    for (std::size_t i = 0; i < samples; ++i) {
        const std::size_t target = 1 + i * all / samples;  // evenly spread, the first among them
        const std::size_t begin = target > seen ? target - seen : 0;
        Window window;
        window.first = static_cast<std::int64_t>(begin);
        window.tokens.assign(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                             ids.begin() + static_cast<std::ptrdiff_t>(target + 1));
        window.skip = window.tokens.size() - 1;
        window.ends = options.ends && target == fed;
        add(std::move(window), std::min(target, count));
    }
    return evicted;
}

}  // namespace

const char* context_mode_name(ContextMode mode) {
    switch (mode) {
        case ContextMode::full:
            return "full";
        case ContextMode::window:
            return "window";
        case ContextMode::streaming:
            return "streaming";
        case ContextMode::recompute:
            return "recompute";
    }
    return "?";
}

model::Stream stream_of(const EvalOptions& options) {
    const model::Stream& s = options.stream;
    if (options.mode == ContextMode::streaming) return s;
    if (options.mode == ContextMode::window) return {0, s.sinks + s.window};
    return {};
}

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
    Evaluation evaluation(engine, stream_of(options), result.curve);
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
        const std::size_t all = std::max<std::size_t>(ids.size(), 1);  // ids may be given away
        const auto add = [&](Window window, std::size_t end) {
            window.document = d;
            window.index = window_nats[d].size();
            window_nats[d].push_back(0);
            for (std::size_t j = window.skip; j + window.ends < window.tokens.size(); ++j) {
                result.bytes +=
                    static_cast<std::int64_t>(tokenizer->piece(window.tokens[j]).size());
            }
            result.tokens += static_cast<std::int64_t>(window.tokens.size() - window.skip);
            window.text_done = text_done + document.size() * end / all;
            evaluation.add(std::move(window), done);
        };
        if (options.mode == ContextMode::full) {
            result.cut += add_windows(ids, *tokenizer, context, options, add);
        } else {
            result.evicted += add_streams(std::move(ids), *tokenizer, options, add);
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
