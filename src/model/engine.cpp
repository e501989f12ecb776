#include "model/engine.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "core/cpu.h"
#include "core/cuda/device.h"
#include "core/error.h"
#include "core/memory.h"
#include "model/cpu/cpu_engine.h"
#include "model/cuda/device_engine.h"
#include "model/cuda/device_weights.h"

namespace mr::model {
namespace {

void require_positions(const ModelSpec& spec, const EngineOptions& options) {
    constexpr std::int64_t kMost = Engine::kMostPositions;  // kernels count in 32 bits
    if (options.context > kMost) {
        throw Error::input(
            {.field = "--ctx",
             .value = std::to_string(options.context),
             .problem = "a sequence has at most " + std::to_string(kMost) + " positions",
             .remedy = "use at most that"});
    }
    if (!spec.learned_positions || options.context <= spec.context) return;
    throw Error::input({.field = "--ctx",
                        .value = std::to_string(options.context),
                        .problem = "the model has a table of " + std::to_string(spec.context) +
                                   " learned positions",
                        .remedy = "use at most that"});
}

// The largest pool whose engine fits into `available` bytes, but at least what one sequence needs.
std::int64_t fitting_pool(const Model& model, EngineOptions options, std::uint64_t available) {
    const std::int64_t page = KvCache::kPageTokens;
    // A model with windows needs less than its context; the rest of the pool keeps prompts and
    // conversations, which saves computing them again.
    const std::int64_t least = least_positions(model.spec, options);
    const std::int64_t most =
        std::max(options.context, least) * options.max_sequences + options.shared;
    const auto fits = [&](std::int64_t tokens) {
        options.pool = tokens;
        return plan_engine(model, options).total() <= available;
    };
    if (available == 0 || fits(most)) return most;
    std::int64_t low = KvCache::pages_for(least), high = KvCache::pages_for(most);
    while (high - low > 1) {
        const std::int64_t middle = low + (high - low) / 2;
        (fits(middle * page) ? low : high) = middle;
    }
    return std::max(low * page, least);
}

void require_cpu_layers(const Model& model) {
    require_layers(model.spec, cpu_takes, model.source, "the CPU engine",
                   "no engine of this program runs the model");
}

// Pages of a ring for passes with `rows` rows of a sequence: pages that the first row sees must
// still be there when the last row is stored.
std::int64_t circle_pages(std::int64_t window, std::int64_t rows) {
    return ops::pages_spanned(window - 1 + rows);
}

// A pool that takes all free memory must leave the driver room on a GPU: allocations are rounded up
// there, and code and captured graphs need memory.
constexpr std::uint64_t kDriverRoom = std::uint64_t{1} << 30;

}  // namespace

std::uint64_t room_beside_others(std::uint64_t all, std::uint64_t free, std::uint64_t weights) {
    if (free == 0) return all;
    return std::min(all, free - free / 4 + weights);
}

std::uint64_t room_for_engine(const Model& model, const EngineOptions& options) {
    if (options.cuda) return cuda::require_device().free_bytes;
    return room_beside_others(cpu_info().memory_bytes, free_memory_bytes(),
                              std::min(model.weights.owned_bytes, own_memory_bytes()));
}

EngineOptions with_defaults(const Model& model, const EngineOptions& wanted,
                            std::uint64_t available) {
    EngineOptions options = wanted;
    if (options.threads <= 0) options.threads = cpu_info().cores;
    options.max_sequences = std::max(options.max_sequences, 1);
    if (options.context <= 0) {
        options.context = model.spec.context;
        if (options.stream) {
            options.context = std::min(options.context, least_positions(model.spec, options));
        }
    }
    if (options.pool > 0 && !options.stream &&
        options.pool < least_positions(model.spec, options)) {
        options.context = std::min(options.context, options.pool);
    }
    options.max_batch = static_cast<int>(std::clamp<std::int64_t>(
        options.max_batch, 1,
        std::max<std::int64_t>(options.context, 1) * std::int64_t{options.max_sequences}));
    options.max_batch = std::max(options.max_batch, options.max_sequences);
    if (options.cuda) {  // pieces of prompts there are at least this long
        const std::int64_t longest = options.stream ? kCut : options.context;
        options.max_batch =
            std::max(options.max_batch, static_cast<int>(std::min<std::int64_t>(kCut, longest)));
    }
    if (const auto& diffusion = model.spec.diffusion) {
        // A pass has the blocks of all sequences, each with the block before it; with full
        // attention, a whole text.
        if (options.block <= 0)
            options.block = diffusion->block > 0 ? diffusion->block : kUsualBlock;
        // Quantised weights are multiplied with 256 rows at a time anyway, and with full attention
        // there is one text per pass.
        const DType matrix = model.weights.layers.front().o.dtype;
        options.block_rows =
            diffusion->block > 0 && (matrix == DType::bf16 || matrix == DType::f16) ? 1024 : 0;
        const std::int64_t rows = diffusion->block > 0
                                      ? std::int64_t{2} * options.block * options.max_sequences
                                      : options.context;
        // And a piece of a prompt, which is cut at the end of a block.
        const std::int64_t piece =
            diffusion->block > 0 ? std::lcm(options.cuda ? kCut : 1, std::int64_t{options.block})
                                 : 1;
        options.max_batch =
            static_cast<int>(std::max<std::int64_t>({options.max_batch, rows, piece}));
        options.max_logits = std::max(options.max_logits, options.block * options.max_sequences);
    }
    if (options.max_logits <= 0) options.max_logits = options.max_sequences;
    options.max_logits = std::max(options.max_logits, options.max_sequences);
    // Results are checked after each step, so it cannot be replayed.
    if (options.check_nan) options.graph = false;
    if (!options.kv_type) options.kv_type = options.cuda ? device_kv_type(model) : DType::f32;
    if (options.pool <= 0) {
        const std::uint64_t room = options.cuda ? std::min(available / 16, kDriverRoom) : 0;
        options.pool = fitting_pool(model, options, available - room);
    }
    return options;
}

MemoryPlan plan_engine(const Model& model, const EngineOptions& wanted) {
    const EngineOptions options = with_defaults(model, wanted, 0);
    return options.cuda ? device_plan(model, options) : cpu_plan(model, options);
}

void require_engine(const Model& model, const EngineOptions& wanted) {
    require_positions(model.spec, wanted);
    require_stream(model.spec, wanted);
    if (wanted.cuda) {
        require_device_shape(model);
    } else {
        require_cpu_layers(model);
    }
    const EngineOptions options = with_defaults(model, wanted, room_for_engine(model, wanted));
    if (options.cuda) return require_device(model, options, wanted);
    plan_engine(model, options)
        .require(cpu_info().memory_bytes,
                 std::string("use a smaller ") + (options.stream ? "--window" : "--ctx") +
                     (options.max_sequences > 1 ? " or --pool, fewer sequences" : " or --pool") +
                     ", --kv-type f16, or a smaller weight type");
}

std::unique_ptr<Engine> make_engine(std::shared_ptr<const Model> model, const EngineOptions& wanted,
                                    std::shared_ptr<const DeviceWeights> weights) {
    const std::uint64_t held = weights ? weights->bytes : 0;
    require_positions(model->spec, wanted);
    require_stream(model->spec, wanted);
    const EngineOptions options =
        with_defaults(*model, wanted, room_for_engine(*model, wanted) + held);
    if (!options.cuda) {
        require_engine(*model, options);
        return make_cpu_engine(std::move(model), options);
    }
    MR_CHECK(weights != nullptr, "an engine on the device is given weights there");
    require_device(*model, options, wanted, held);
    return make_device_engine(std::move(model), std::move(weights), options);
}

std::int64_t least_positions(const ModelSpec& spec, const EngineOptions& options) {
    const std::int64_t window = options.stream.beside(spec.widest_window());
    if (window == 0) return options.context;
    // The largest pass, whatever with_defaults() rounds it up to.
    const std::int64_t rows =
        std::max({std::int64_t{options.max_batch}, std::int64_t{options.max_sequences}, kCut});
    const std::int64_t pages =
        circle_pages(window, rows) + KvCache::pages_for(options.stream.sinks);
    const std::int64_t circle = pages * KvCache::kPageTokens;
    return options.stream ? circle : std::min(options.context, circle);
}

std::int64_t most_held(const ModelSpec& spec, const EngineOptions& options) {
    if (!options.stream) return options.context;
    const std::int64_t least = least_positions(spec, options);
    return std::max(options.context, least + options.shared);
}

void require_stream(const ModelSpec& spec, const EngineOptions& options) {
    const Stream& stream = options.stream;
    if (!stream) return;
    if (spec.learned_positions) {
        throw Error::input({.field = "--context",
                            .problem = "the model has a table of " + std::to_string(spec.context) +
                                       " learned positions and cannot go past it",
                            .remedy = "use --context full"});
    }
    if (stream.sinks > stream.window) {
        throw Error::usage(
            {.field = "--sinks",
             .value = std::to_string(stream.sinks),
             .problem = "are more than the window of " + std::to_string(stream.window),
             .remedy = "use fewer sinks or a longer window"});
    }
    const std::int64_t least = least_positions(spec, options);
    if (options.pool > 0 && options.pool < least) {
        throw Error::usage({.field = "--pool",
                            .value = std::to_string(options.pool),
                            .problem = "sinks, window and a piece of a prompt need " +
                                       std::to_string(least) + " positions",
                            .remedy = "use at least that, or a shorter window"});
    }
}

Engine::Engine(std::shared_ptr<const Model> model, const EngineOptions& options)
    : model_(std::move(model)),
      options_(options),
      pool_(options_.threads),
      window_(model_->spec.widest_window()) {
    const auto most = static_cast<std::size_t>(options_.max_sequences) * 2;
    pass_.items.reserve(most);
    pass_.seqs.reserve(most);
    ctx_.pool = &pool_;
    ctx_.ledger = &ledger_;
}

Engine::~Engine() = default;

std::int64_t Engine::most_positions() const {
    return model_->spec.learned_positions
               ? std::min<std::int64_t>(options_.context, model_->spec.context)
               : options_.context;
}

void Engine::require_tokens(std::span<const std::int32_t> ids) const {
    const int vocab = model_->spec.vocab;
    for (const std::int32_t id : ids) {
        if (id >= 0 && id < vocab) continue;
        throw Error::input(
            {.field = "token id",
             .value = std::to_string(id),
             .problem = "is outside of the model's vocabulary of " + std::to_string(vocab),
             .remedy = "use the tokenizer that belongs to the model"});
    }
}

std::int64_t Engine::window(const Stream& stream) const { return stream.beside(window_); }

std::int64_t Engine::plain_positions(const Stream& stream, Form form) const {
    if (!stream) return kMostPositions;
    std::int64_t out = std::int64_t{stream.sinks} + stream.window;
    if (cut() > 1 && stream.sinks > 0) {
        // Where forms differ, the decode form adds sinks separately: other bits. The prompt form
        // does so for tokens with a sink before their window if the flash forwards compute it, and
        // for all tokens if they do not.
        if (form == Form::decode || !device_prompts_flash(*model_, options_)) return 0;
        out = stream.window;
    }
    if (stream.sinks == 0) return out;
    for (const LayerSpec& layer : model_->spec.layer_specs()) {
        // With its own window a token would not see the sinks.
        if (layer.mask.window > 0) out = std::min<std::int64_t>(out, layer.mask.window);
    }
    return out;
}

bool Engine::try_reserve(SeqId seq, std::int64_t kept, std::int64_t length) {
    const Stream& stream = cache_->stream(seq);
    if (const std::int64_t window = this->window(stream); window > 0) {
        const std::int64_t circle = circle_pages(window, kept > 0 ? 1 : options_.max_batch);
        // Sinks are never overwritten.
        const std::int64_t prefix = std::max<std::int64_t>(kept, stream.sinks);
        const std::int64_t pages = KvCache::pages_for(prefix) + circle;
        const auto entries = static_cast<std::int64_t>(cache_->table(seq).size());
        if (pages < KvCache::pages_for(length)) {
            return pages <= entries && cache_->try_reserve_circle(seq, prefix, circle);
        }
        // A prompt that is kept whole may exceed the table.
        if (KvCache::pages_for(length) > entries) return false;
    }
    return cache_->try_reserve(seq, length);
}

void Engine::release(SeqId seq) {
    const std::int64_t window = this->window(cache_->stream(seq));
    if (window == 0) return;
    cache_->release_before(seq, std::max<std::int64_t>(cache_->length(seq) - window + 1, 0));
}

std::int64_t Engine::logit_rows(const BatchItem& item) {
    if (item.logits == BatchItem::Logits::all) return static_cast<std::int64_t>(item.tokens.size());
    if (item.logits == BatchItem::Logits::some) return static_cast<std::int64_t>(item.rows.size());
    return item.logits == BatchItem::Logits::last || !item.draw.empty() ? 1 : 0;
}

std::int64_t Engine::logit_token(const BatchItem& item, std::int64_t count, std::int64_t r) {
    if (item.logits == BatchItem::Logits::some) return item.rows[static_cast<std::size_t>(r)];
    return count - logit_rows(item) + r;
}

void Engine::guess_here(Tensor logits, std::span<const Place> places, std::span<ops::Guess> out,
                        std::span<std::byte> scratch) {
    MR_CHECK(model_->spec.diffusion && places.size() == out.size() &&
                 logits.rows() >= static_cast<std::int64_t>(places.size()),
             "a model that fills in tokens has a row for every place");
    const std::size_t each = ops::sample_scratch_bytes(model_->spec.vocab);
    MR_CHECK(scratch.size() >= each * static_cast<std::size_t>(pool_.size()),
             "every thread has scratch of its own");
    const auto count = static_cast<std::int64_t>(places.size());
    const LedgerEntry entry(&ledger_, OpKind::sample,
                            static_cast<std::uint64_t>(count) * logits.row_bytes(), 0,
                            static_cast<std::uint64_t>(4 * count * logits.dim(1)));
    pool_.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
        Context ctx;
        ctx.pool = &pool_;
        ctx.scratch = scratch.subspan(static_cast<std::size_t>(thread) * each, each);
        for (std::int64_t i = begin; i < end; ++i) {
            const Place& place = places[static_cast<std::size_t>(i)];
            Tensor row = logits.slice_rows(i, 1);
            row.shape = {logits.dim(1)};
            out[static_cast<std::size_t>(i)] = ops::guess_or_fault(
                ctx, row, *place.sampling, *place.how, model_->spec.diffusion->mask,
                static_cast<std::uint64_t>(place.position), static_cast<std::uint64_t>(place.step),
                place.truth);
        }
    });
}

// Makes room in the cache for the item's tokens, and sets the table of its sequence.
void Engine::make_room(const BatchItem& item, ops::BatchSeq& seq) {
    const std::int64_t end = std::int64_t{seq.position} + seq.count;
    // A ring advances only when it must: a prompt's pages stay until it is published.
    const KvCache::Circle circle = cache_->circle(item.seq);
    if (circle.pages > 0 && KvCache::pages_for(end) > circle.end) release(item.seq);
    cache_->reserve(item.seq, end);
    seq.pages = cache_->table(item.seq);
    seq.base = static_cast<std::int32_t>(cache_->base(item.seq));
    seq.front = cache_->front(item.seq);
    if (seq.base == 0) return;
    const std::int64_t window = !item.mask             ? this->window(cache_->stream(item.seq))
                                : item.mask->sinks > 0 ? 0
                                                       : std::int64_t{item.mask->window};
    MR_CHECK(window > 0 && seq.position - window + 1 >= seq.base,
             "no token sees a position whose page was given back");
}

// Lays the batch out, one row per token, given items before fed ones, and makes room in the cache.
void Engine::lay_out(std::span<const BatchItem> items) {
    const ModelSpec& spec = model_->spec;
    pass_.items.clear();
    pass_.seqs.clear();
    pass_.tokens = 0;
    std::int64_t rows = 0, drawn = 0, given_tokens = 0;
    for (const bool fed : {false, true}) {
        for (const BatchItem& item : items) {
            if (item.tokens.empty() != fed) continue;
            MR_CHECK(!fed || (item.feed != kNoSlot && item.form == Form::decode),
                     "an item has tokens, or a slot that feeds it in the decode form");
            const auto count = fed ? 1 : static_cast<std::int64_t>(item.tokens.size());
            MR_CHECK(item.form == Form::prompt || count <= kDecodePrompt,
                     "an item in the decode form has at most kDecodePrompt tokens");
            MR_CHECK(item.commit <= count, "an item commits positions of its own");
            MR_CHECK(!fed || !item.mask, "a token that is fed sees what the layers say");
            MR_CHECK(
                item.logits != BatchItem::Logits::some ||
                    (!fed && item.draw.empty() && (item.rows.empty() || item.rows.back() < count)),
                "logits of some given tokens are read, not drawn from");
            const Stream& stream = cache_->stream(item.seq);
            MR_CHECK(!stream || (!item.mask && stream.sinks <= options_.stream.sinks &&
                                 stream.window <= options_.stream.window),
                     "a sequence streams as the engine was made for, with the layers' masks");
            const std::int64_t position = cache_->length(item.seq);
            if (position + count > (stream ? kMostPositions : most_positions())) {
                const bool learned = spec.learned_positions && position + count > spec.context;
                throw Error::input(
                    {.field = "context",
                     .value = std::to_string(position + count),
                     .problem = learned ? "the model has learned positions for " +
                                              std::to_string(spec.context) + " tokens only"
                                        : "a sequence has at most " +
                                              std::to_string(most_positions()) + " positions",
                     .remedy =
                         learned ? "use a shorter text" : "use a shorter text or raise --ctx"});
            }
            require_tokens(item.tokens);
            pass_.items.push_back(&item);
            pass_.seqs.push_back({static_cast<std::int32_t>(pass_.tokens),
                                  static_cast<std::int32_t>(count),
                                  static_cast<std::int32_t>(position),
                                  {}});
            pass_.tokens += count;
            rows += logit_rows(item);
            // For given tokens every slot has its own row to draw from, besides the rows that are
            // read.
            if (!fed) {
                drawn += static_cast<std::int64_t>(item.draw.size()) +
                         (item.logits == BatchItem::Logits::none ? 0 : logit_rows(item));
            }
        }
        if (fed) continue;
        pass_.given = pass_.items.size();
        given_tokens = pass_.tokens;
    }
    MR_CHECK(pass_.tokens > 0, "a pass has tokens");
    MR_CHECK(given_tokens <= options_.max_batch, "a pass has at most max_batch given tokens");
    MR_CHECK(rows <= options_.max_logits, "a pass asks for at most max_logits rows");
    MR_CHECK(drawn <= options_.max_logits, "as many rows can be drawn from");
    for (std::size_t i = 0; i < pass_.items.size(); ++i) make_room(*pass_.items[i], pass_.seqs[i]);
}

void Engine::advance() {
    for (std::size_t i = 0; i < pass_.items.size(); ++i) {
        const BatchItem& item = *pass_.items[i];
        cache_->advance(item.seq, item.commit < 0 ? pass_.seqs[i].count : item.commit);
    }
}

Tensor Engine::submit(std::span<const BatchItem> items) {
    lay_out(items);
    const Tensor logits = run(pass_);
    advance();
    return logits;
}

void Engine::submit(std::span<const BatchItem> items, std::span<const Place> places,
                    std::span<ops::Guess> out) {
    std::int64_t rows = 0;
    for (const BatchItem& item : items) {
        MR_CHECK(!item.tokens.empty() && item.draw.empty(), "guesses are of given tokens");
        rows += logit_rows(item);
    }
    MR_CHECK(model_->spec.diffusion && places.size() == out.size() && rows == std::ssize(places),
             "a model that fills in tokens has a row for every place");
    lay_out(items);
    run(pass_, places, out);
    advance();
}

}  // namespace mr::model
