#include "decode/eval_diffusion.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/philox.h"
#include "text/tokenizer.h"

namespace mr::decode {
namespace {

// A stretch of a document; its first `given` tokens are known.
struct Stretch {
    std::size_t document = 0;
    std::vector<std::int32_t> tokens;
    std::size_t given = 1;
    std::uint64_t text_done = 0;  // bytes of text up to its end, for the progress
};

// Computes the nats of a stretch, pass by pass.
class Reader {
  public:
    virtual ~Reader() = default;
    virtual bool over() const = 0;
    // The next pass; valid until take().
    virtual model::BatchItem next(model::KvCache& cache, model::SeqId seq) = 0;
    virtual std::span<const model::Place> places() const = 0;
    // Returns the nats that the pass adds.
    virtual double take(std::span<const ops::Guess> guesses) = 0;
    virtual std::int64_t passes() const { return 0; }
    virtual double variance() const { return 0; }  // of the nats, over the random draws
};

constexpr ops::SampleParams kUnused{};  // nothing is drawn

// Replays the decoder's order on the true text.
class Replay final : public Reader {
  public:
    Replay(const model::ModelSpec& spec, const DiffusionOptions& options, const Stretch& stretch)
        : truth_(stretch.tokens),
          text_(spec, options, kUnused, std::span(stretch.tokens).first(stretch.given),
                std::ssize(stretch.tokens) - static_cast<std::ptrdiff_t>(stretch.given)) {
        text_.judge(truth_);
    }
    bool over() const override { return over_; }
    model::BatchItem next(model::KvCache& cache, model::SeqId seq) override {
        prefills_ = cache.length(seq) < text_.prefix();
        if (!prefills_) return text_.next(cache, seq);
        return {.seq = seq,
                .tokens = std::span(truth_).first(static_cast<std::size_t>(text_.prefix())),
                .logits = model::BatchItem::Logits::none,
                .mask = text_.mask()};
    }
    std::span<const model::Place> places() const override {
        return prefills_ ? std::span<const model::Place>() : text_.places();
    }
    double take(std::span<const ops::Guess> guesses) override {
        if (prefills_) return 0;
        text_.take(guesses);
        double nats = 0;
        for (std::size_t i = 0; i < guesses.size(); ++i) {
            if (text_.settled()[i]) nats -= static_cast<double>(guesses[i].logprob);
        }
        if (text_.filled()) over_ = !text_.open_next();
        return nats;
    }
    std::int64_t passes() const override { return text_.passes(); }

  private:
    std::vector<std::int32_t> truth_;
    BlockText text_;
    bool prefills_ = false, over_ = false;
};

// Masks every block at `rates` rates, one pass each, then commits the true block to the cache.
class Masked final : public Reader {
  public:
    Masked(const model::ModelSpec& spec, const DiffusionOptions& options, int rates,
           const Stretch& stretch)
        : spec_(spec), how_(options.denoise), rates_(rates), truth_(stretch.tokens) {
        const auto all = std::ssize(truth_);
        given_ = static_cast<std::int64_t>(stretch.given);
        block_ = spec.diffusion->block > 0 ? options.block_of(spec) : all;
        mask_ = options.mask_of(spec);
        document_ = stretch.document;
    }
    bool over() const override { return start_ >= std::ssize(truth_); }
    model::BatchItem next(model::KvCache& cache, model::SeqId seq) override {
        rows_.clear();
        places_.clear();
        const std::int64_t from = cache.length(seq);
        const std::int64_t end = std::min<std::int64_t>(start_ + block_, std::ssize(truth_));
        // With shifted logits, the first place of a block is predicted by the token before it: the
        // previous block is computed again, up to its last token.
        noisy_.assign(truth_.begin() + from, truth_.begin() + end);
        const bool shifted = spec_.diffusion->shifted;
        const auto words = philox(kSeed, static_cast<std::uint64_t>(start_), document_);
        rate_ =
            (static_cast<double>(rate_number_) + 1 - static_cast<double>(unit_float(words[0]))) /
            rates_;
        for (std::int64_t at = std::max(start_, given_); at < end; ++at) {
            const auto chance = philox(kSeed + 1 + static_cast<std::uint64_t>(rate_number_),
                                       static_cast<std::uint64_t>(at), document_);
            if (static_cast<double>(unit_float(chance[0])) >= rate_) continue;
            noisy_[static_cast<std::size_t>(at - from)] = spec_.diffusion->mask;
            rows_.push_back(static_cast<std::int32_t>(at - from - (shifted ? 1 : 0)));
            places_.push_back({&kUnused, &how_, at, 0, truth_[static_cast<std::size_t>(at)]});
        }
        model::BatchItem item{.seq = seq,
                              .tokens = noisy_,
                              .logits = rows_.empty() ? model::BatchItem::Logits::none
                                                      : model::BatchItem::Logits::some,
                              .rows = rows_,
                              .commit = 0,
                              .mask = mask_};
        if (spec_.diffusion->block > 0) {
            // Tokens before the block are the true ones, and stay; a shifted model keeps the
            // previous block uncommitted until the block that needs its last row is done.
            const std::int64_t keep = shifted ? std::max<std::int64_t>(start_ - block_, 0) : start_;
            item.commit = std::max<std::int64_t>(keep - from, 0);
        }
        item.form = model::form_of_prompt(std::ssize(noisy_));
        return item;
    }
    std::span<const model::Place> places() const override { return places_; }
    double take(std::span<const ops::Guess> guesses) override {
        double nats = 0;
        for (const ops::Guess& guess : guesses) nats -= static_cast<double>(guess.logprob);
        nats /= rate_;  // one sample of the block's bound; their mean is the bound
        // Welford's sum of squared deviations from the mean.
        const double above = nats - mean_;
        mean_ += above / (rate_number_ + 1);
        squares_ += above * (nats - mean_);
        if (++rate_number_ == rates_) {
            if (rates_ > 1) variance_ += squares_ / (rates_ - 1) / rates_;
            mean_ = squares_ = 0;
            rate_number_ = 0;
            start_ += block_;
        }
        return nats / rates_;
    }
    double variance() const override { return variance_; }  // blocks are drawn independently

  private:
    static constexpr std::uint64_t kSeed = 0xD1FF05;
    const model::ModelSpec& spec_;
    const ops::DenoiseParams how_;
    const int rates_;
    const std::vector<std::int32_t> truth_;
    std::optional<ops::AttentionMask> mask_;
    std::uint64_t document_ = 0;
    std::int64_t given_ = 1, block_ = 1, start_ = 0;
    int rate_number_ = 0;
    double rate_ = 1;
    double mean_ = 0, squares_ = 0;  // over the rates of this block so far
    double variance_ = 0;
    std::vector<std::int32_t> noisy_, rows_;
    std::vector<model::Place> places_;
};

struct Sums {
    std::vector<double> nats;  // of each stretch
    std::int64_t passes = 0;   // over all stretches
    double variance = 0;
};

// Runs stretches side by side, each with its own reader.
template <typename Make>
Sums read_all(model::Engine& engine, const std::vector<Stretch>& stretches, Make&& make,
              const std::function<void(std::uint64_t)>& passed) {
    struct Open {
        std::size_t stretch;
        model::SeqId seq;
        std::unique_ptr<Reader> reader;
    };
    Sums sums;
    sums.nats.assign(stretches.size(), 0);
    std::vector<Open> open;
    std::vector<model::BatchItem> items;
    std::vector<Open*> in_pass;
    std::vector<model::Place> places;
    std::vector<ops::Guess> guesses;
    struct CloseAll {
        model::Engine& engine;
        std::vector<Open>& open;
        ~CloseAll() {
            for (const Open& one : open) engine.cache().close(one.seq);
        }
    } const close_all{engine, open};
    const model::EngineOptions& limits = engine.options();
    std::size_t next = 0;
    std::uint64_t far = 0;  // bytes of text read so far
    while (next < stretches.size() || !open.empty()) {
        while (next < stretches.size() &&
               open.size() < static_cast<std::size_t>(limits.max_sequences)) {
            const model::SeqId seq = engine.cache().open();
            if (!engine.try_reserve(seq, 0, std::ssize(stretches[next].tokens))) {
                engine.cache().close(seq);
                MR_CHECK(!open.empty(), "the pool has room for one sequence");
                break;
            }
            open.push_back({next, seq, make(stretches[next])});
            ++next;
        }
        items.clear();
        in_pass.clear();
        places.clear();
        std::int64_t room = limits.max_batch;
        for (Open& one : open) {
            const model::BatchItem item = one.reader->next(engine.cache(), one.seq);
            const std::span<const model::Place> asked = one.reader->places();
            room -= std::ssize(item.tokens);
            if (room < 0 || std::ssize(places) + std::ssize(asked) > limits.max_logits) break;
            items.push_back(item);
            in_pass.push_back(&one);
            places.insert(places.end(), asked.begin(), asked.end());
        }
        MR_CHECK(!items.empty(), "a pass has room for one text and its rows of logits");
        guesses.resize(places.size());
        engine.submit(items, places, guesses);
        for (const ops::Guess& guess : guesses) ops::check_guess(guess);
        std::size_t row = 0;
        for (Open* const one : in_pass) {
            const std::size_t count = one->reader->places().size();
            sums.nats[one->stretch] += one->reader->take(std::span(guesses).subspan(row, count));
            row += count;
        }
        for (Open& one : open) {
            if (!one.reader->over()) continue;
            sums.passes += one.reader->passes();
            sums.variance += one.reader->variance();
            far = std::max(far, stretches[one.stretch].text_done);
            engine.cache().close(one.seq);
            one.reader.reset();
        }
        std::erase_if(open, [](const Open& one) { return !one.reader; });
        passed(far);
    }
    return sums;
}

// Cuts the documents into stretches of whole blocks, at most one context long.
std::vector<Stretch> stretches_of(model::Engine& engine, std::string_view text,
                                  const EvalOptions& options, std::int64_t block,
                                  EvalResult& result) {
    const text::Tokenizer& tokenizer = *engine.model().tokenizer;
    const std::int64_t context = engine.options().context / block * block;
    if (context < 2) {
        throw Error::input({.field = "--ctx",
                            .value = std::to_string(engine.options().context),
                            .problem = "has no room for a block of " + std::to_string(block),
                            .remedy = "give at least that, or a smaller --block"});
    }
    if (!tokenizer.eos()) {
        throw Error::input({.file = engine.model().source,
                            .problem = "its tokenizer has no token that ends a text"});
    }
    std::vector<Stretch> out;
    std::uint64_t done = 0;
    const std::vector<std::string_view> documents = split_documents(text, options);
    result.documents = std::ssize(documents);
    for (std::size_t d = 0; d < documents.size(); ++d) {
        const std::vector<std::int32_t> ids =
            tokenizer.encode(documents[d], {.add_special = false, .parse_special = false});
        done += documents[d].size();
        for (std::size_t i = 0; i < ids.size();) {
            Stretch stretch;
            stretch.document = d;
            if (tokenizer.bos()) stretch.tokens.push_back(*tokenizer.bos());
            const std::size_t lead = stretch.tokens.size();
            const std::size_t room = static_cast<std::size_t>(context) - lead;
            const std::size_t count = std::min(room, ids.size() - i);
            stretch.tokens.insert(stretch.tokens.end(),
                                  ids.begin() + static_cast<std::ptrdiff_t>(i),
                                  ids.begin() + static_cast<std::ptrdiff_t>(i + count));
            i += count;
            // The end token, repeated to the end of the block, where there is room for it.
            const bool ends = i == ids.size() && count < room;
            if (ends) stretch.tokens.push_back(*tokenizer.eos());
            result.tokens += std::ssize(stretch.tokens) - 1;
            for (std::size_t j = 1; j + ends < stretch.tokens.size(); ++j) {
                result.bytes +=
                    static_cast<std::int64_t>(tokenizer.piece(stretch.tokens[j]).size());
            }
            const std::size_t whole =
                (stretch.tokens.size() + static_cast<std::size_t>(block) - 1) /
                static_cast<std::size_t>(block) * static_cast<std::size_t>(block);
            stretch.tokens.resize(whole, *tokenizer.eos());
            stretch.text_done = done;
            if (stretch.tokens.size() > 1) out.push_back(std::move(stretch));
            if (!options.split.empty()) {
                result.cut += !ends;
                break;
            }
        }
    }
    if (result.tokens == 0) {
        throw Error::input({.field = "text",
                            .problem = "has no token to predict",
                            .remedy = "give a text of at least two tokens"});
    }
    return out;
}

}  // namespace

DiffusionEvalResult evaluate_diffusion(model::Engine& engine, std::string_view text,
                                       const EvalOptions& options, const DiffusionEvalOptions& how,
                                       const Progress& progress) {
    const model::ModelSpec& spec = engine.model().spec;
    MR_CHECK(engine.model().tokenizer != nullptr, "evaluation needs a tokenizer");
    how.decoder.check(spec);
    if (how.decoder.denoise.drawn) {
        throw Error::usage(
            {.field = "--confidence",
             .value = "drawn",
             .problem = "makes the order random, so the likelihood of a text cannot be computed",
             .remedy = "use --confidence max"});
    }
    DiffusionEvalResult out;
    const Ledger before = engine.ledger();
    const auto start = std::chrono::steady_clock::now();
    const std::vector<Stretch> stretches =
        stretches_of(engine, text, options, how.decoder.block_of(spec), out.exact);
    std::uint64_t all = 0;
    for (const Stretch& stretch : stretches) all = std::max(all, stretch.text_done);
    const auto told = [&](const char* what) {
        return [&progress, what, all](std::uint64_t bytes) {
            if (progress) progress(what, bytes, all);
        };
    };
    const Sums sums = read_all(
        engine, stretches,
        [&](const Stretch& s) { return std::make_unique<Replay>(spec, how.decoder, s); },
        told("replaying the decoder"));
    out.passes = sums.passes;
    EvalResult& exact = out.exact;
    exact.document_nats.assign(static_cast<std::size_t>(exact.documents), 0);
    double sum = 0;
    for (std::size_t i = 0; i < stretches.size(); ++i) {
        exact.document_nats[stretches[i].document] += sums.nats[i];
        sum += sums.nats[i];
    }
    exact.nll = sum / static_cast<double>(exact.tokens);
    exact.phase = {exact.tokens,
                   std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
                   engine.ledger().since(before)};
    if (how.bound > 0) {
        const Sums bounds = read_all(
            engine, stretches,
            [&](const Stretch& s) {
                return std::make_unique<Masked>(spec, how.decoder, how.bound, s);
            },
            told("masking"));
        double total = 0;
        for (const double nats : bounds.nats) total += nats;
        out.bound_nll = total / static_cast<double>(exact.tokens);
        if (how.bound > 1) {
            out.bound_error = std::sqrt(bounds.variance) / static_cast<double>(exact.tokens);
        }
    }
    return out;
}

namespace {

template <typename Make>
MaskedSample sample_of(model::Engine& engine, std::span<const std::int32_t> tokens,
                       std::size_t given, std::size_t draw, Make&& make) {
    Stretch stretch;
    stretch.document = draw;
    stretch.tokens.assign(tokens.begin(), tokens.end());
    stretch.given = given;
    const Sums sums = read_all(engine, {stretch}, make, [](std::uint64_t) {});
    return {sums.nats.front(), sums.variance};
}

}  // namespace

double replayed_nats(model::Engine& engine, const DiffusionOptions& decoder,
                     std::span<const std::int32_t> tokens, std::size_t given) {
    const auto make = [&](const Stretch& s) {
        return std::make_unique<Replay>(engine.model().spec, decoder, s);
    };
    return sample_of(engine, tokens, given, 0, make).nats;
}

double masked_nats(model::Engine& engine, const DiffusionEvalOptions& how,
                   std::span<const std::int32_t> tokens, std::size_t given) {
    return masked_sample(engine, how, tokens, given).nats;
}

MaskedSample masked_sample(model::Engine& engine, const DiffusionEvalOptions& how,
                           std::span<const std::int32_t> tokens, std::size_t given,
                           std::size_t draw) {
    const auto make = [&](const Stretch& s) {
        return std::make_unique<Masked>(engine.model().spec, how.decoder, how.bound, s);
    };
    return sample_of(engine, tokens, given, draw, make);
}

}  // namespace mr::decode
