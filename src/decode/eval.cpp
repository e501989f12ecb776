#include "decode/eval.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iterator>
#include <utility>

#include "core/error.h"
#include "decode/eval_diffusion.h"
#include "text/tokenizer.h"

namespace mr::decode {
namespace {

// `count` of the positions 1 to `all` of a document, evenly spread, the first included.
struct Samples {
    std::int64_t all = 0, count = 0;

    std::int64_t position(std::int64_t i) const { return 1 + i * all / count; }
    bool has(std::int64_t position) const {
        if (count == 0 || position < 1 || position > all) return false;
        const std::int64_t i = ((position - 1) * count + all - 1) / all;  // at or after it
        return i < count && this->position(i) == position;
    }
};

// A stretch of a document, predicted without the tokens before it.
struct Window {
    std::size_t document = 0, index = 0;  // document, and window in it
    std::vector<std::int32_t> tokens;
    std::int64_t first = 0;       // position of tokens[0] in the document
    std::size_t skip = 1;         // tokens before the first that is scored
    bool ends = false;            // the last token is the end token, not text
    std::uint64_t text_from = 0;  // bytes of text before the window; text_done: up to its end
    std::uint64_t text_done = 0;
    std::size_t done = 0;  // tokens fed so far
    model::SeqId seq = -1;
    Samples samples;  // sampled positions of the document
    struct Sum {
        double nats = 0, sample_nats = 0;
        std::int64_t sample_tokens = 0;
    } sum;
};

// Feeds windows side by side and adds up the nll of their tokens[skip..]. The sum is f64 and in
// order: it does not depend on how a window was cut into passes or on the other windows in them.
class Evaluation {
  public:
    // `passed`: called after every pass with the number of bytes of text read so far.
    Evaluation(model::Engine& engine, const model::Stream& stream,
               std::vector<EvalResult::Bucket>& curve, std::function<void(std::uint64_t)> passed)
        : engine_(engine),
          stream_(stream),
          curve_(curve),
          passed_(std::move(passed)),
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
        // Its pages are not shared, so pages that no later token sees are freed.
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
            far_ = std::max(far_,
                            window.text_from + (window.text_done - window.text_from) * end / fed);
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
        passed_(far_);
    }

    void add_nats(Window& window, std::size_t token, double nats) {
        if (token < window.skip) return;
        window.sum.nats += nats;
        const std::int64_t position = window.first + static_cast<std::int64_t>(token);
        if (window.samples.has(position)) {
            window.sum.sample_nats += nats;
            ++window.sum.sample_tokens;
        }
        const auto bucket = static_cast<std::size_t>(position / EvalResult::kCurveStep);
        if (curve_.size() <= bucket) curve_.resize(bucket + 1);
        ++curve_[bucket].tokens;
        curve_[bucket].nats += nats;
    }

    model::Engine& engine_;
    const model::Stream stream_;
    std::vector<EvalResult::Bucket>& curve_;
    const std::function<void(std::uint64_t)> passed_;
    std::uint64_t far_ = 0;  // bytes of text read so far
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
                        .remedy = "the weights are damaged: convert them again, or download them "
                                  "again (millrace pull --verify); --check-nan names the layer "
                                  "where it begins"});
}

constexpr std::int64_t kMostSamples = std::int64_t{1} << 31;

// Samples of a document with `all` predicted tokens: at most `most`.
Samples samples_of(std::size_t all, std::int64_t most) {
    const auto count = static_cast<std::int64_t>(all);
    return {count, std::min(count, most)};
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
        window.first = static_cast<std::int64_t>(i);
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

// The whole document as one sequence; in mode recompute, one window for each sampled token. Returns
// how many tokens the last token could not see.
template <typename Add>
std::int64_t add_streams(std::vector<std::int32_t> ids, const text::Tokenizer& tokenizer,
                         const EvalOptions& options, Add&& add) {
    if (ids.empty()) return 0;
    const std::size_t count = ids.size();  // without bos and eos
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
    const Samples samples = samples_of(fed, options.sample > 0 ? options.sample : kMostSamples);
    for (std::int64_t i = 0; i < samples.count; ++i) {
        const auto target = static_cast<std::size_t>(samples.position(i));
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

EvalResult evaluate(model::Engine& engine, std::string_view text, const EvalOptions& options,
                    const Progress& progress) {
    const text::Tokenizer* tokenizer = engine.model().tokenizer.get();
    MR_CHECK(tokenizer != nullptr, "evaluation needs a tokenizer");
    if (engine.model().spec.diffusion) {
        MR_CHECK(options.mode == ContextMode::full, "such a text is cut at the context");
        return evaluate_diffusion(engine, text, options, {{}, 0}, progress).exact;
    }
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
                            .remedy = "leave out --ends"});
    }

    EvalResult result;
    const Ledger before = engine.ledger();
    const auto start = std::chrono::steady_clock::now();
    result.documents = static_cast<std::int64_t>(documents.size());
    // Windows do not end in the order in which they begin, so sums are added up at the end.
    std::vector<std::vector<Window::Sum>> sums(documents.size());
    std::uint64_t text_done = 0, text_all = 0;
    for (const std::string_view document : documents) text_all += document.size();
    const std::string what = options.mode == ContextMode::full
                                 ? "evaluating"
                                 : std::string("evaluating, ") + context_mode_name(options.mode);
    Evaluation evaluation(engine, stream_of(options), result.curve, [&](std::uint64_t bytes) {
        if (progress) progress(what, bytes, text_all);
    });
    const auto done = [&](const Window& window) {
        require_finite(engine, window.sum.nats);
        sums[window.document][window.index] = window.sum;
    };
    for (std::size_t d = 0; d < documents.size(); ++d) {
        const std::string_view document = documents[d];
        // Special tokens spelled out in the text are encoded as plain text.
        std::vector<std::int32_t> ids =
            tokenizer->encode(document, {.add_special = false, .parse_special = false});
        const std::size_t all = std::max<std::size_t>(ids.size(), 1);  // ids may be moved from
        const bool lead = tokenizer->bos().has_value();
        const Samples samples =
            samples_of(ids.empty() ? 0 : ids.size() + lead + options.ends - 1, options.sample);
        std::uint64_t told = text_done;
        const auto add = [&](Window window, std::size_t end) {
            window.document = d;
            window.index = sums[d].size();
            window.samples = samples;
            sums[d].emplace_back();
            for (std::size_t j = window.skip; j + window.ends < window.tokens.size(); ++j) {
                result.bytes +=
                    static_cast<std::int64_t>(tokenizer->piece(window.tokens[j]).size());
            }
            result.tokens += static_cast<std::int64_t>(window.tokens.size() - window.skip);
            window.text_from = told;
            window.text_done = told = text_done + document.size() * end / all;
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
    double sum = 0, sample_sum = 0;
    for (const std::vector<Window::Sum>& windows : sums) {
        double nats = 0;
        for (const Window::Sum& window : windows) {
            nats += window.nats;
            sample_sum += window.sample_nats;
            result.sample_tokens += window.sample_tokens;
        }
        sum += nats;
        result.document_nats.push_back(nats);
    }
    if (result.sample_tokens > 0) {
        result.sample_nll = sample_sum / static_cast<double>(result.sample_tokens);
    }
    if (result.tokens == 0) {
        throw Error::input({.field = "text",
                            .problem = "has no token to predict",
                            .remedy = "give a text of at least two tokens"});
    }
    result.nll = sum / static_cast<double>(result.tokens);
    result.phase = {result.tokens,
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
                    engine.ledger().since(before)};
    return result;
}

}  // namespace mr::decode
