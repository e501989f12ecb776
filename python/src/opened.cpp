#include "opened.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "cli/engine.h"
#include "cli/model_name.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "decode/eval.h"
#include "decode/open_sequence.h"
#include "decode/prompt.h"
#include "model/cpu/cpu_engine.h"
#include "model/cpu/repack.h"
#include "model/cuda/device_engine.h"
#include "model/cuda/device_weights.h"

namespace mr::python {
namespace {

// Feeds a text in pieces and passes every piece's logits [rows, vocab] to take(first, logits),
// which are valid until it returns.
template <typename Take>
void read_text(model::Engine& engine, std::span<const std::int32_t> ids, const Ticket& ticket,
               Take&& take) {
    const auto count = static_cast<std::int64_t>(ids.size());
    if (count == 0) {
        throw Error::input({.field = "ids", .problem = "there is no token to read"});
    }
    if (count > engine.most_positions()) {
        throw Error::input(
            {.field = "ids",
             .value = std::to_string(count) + " tokens",
             .problem = "do not fit into the context of " + std::to_string(engine.most_positions()),
             .remedy = "give fewer, or a larger ctx"});
    }
    engine.require_tokens(ids);
    const decode::OpenSequence seq(engine.cache());
    if (!engine.try_reserve(seq.id(), 0, count)) {
        throw Error::device({.field = "ids",
                             .value = std::to_string(count) + " tokens",
                             .problem = "the cache has no room for them",
                             .remedy = "give fewer, or a larger pool"});
    }
    const std::int64_t cut = engine.cut();
    const std::int64_t most = std::min(engine.options().max_batch, engine.options().max_logits);
    for (std::int64_t done = 0; done < count && !ticket.cancelled();) {
        std::int64_t piece = std::min(most, count - done);
        if (done + piece < count) piece = piece / cut * cut;
        MR_CHECK(piece > 0, "the engine has logits for a piece of a prompt");
        model::BatchItem item = model::prompt_item(
            seq.id(), ids.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(piece)),
            count, model::BatchItem::Logits::all);
        if (cut == 1) item.form = model::Form::prompt;
        take(done, engine.submit({&item, 1}));
        done += piece;
    }
}

}  // namespace

Opened::Opened(const cli::SharedOptions& shared, int sequences, const Progress& progress) {
    const auto start = std::chrono::steady_clock::now();
    // Weights used in place report no progress of their own.
    if (progress) progress("opening", 0, 1);
    const cli::Disabled off = cli::disabled(shared);
    const bool cuda = cli::use_cuda(shared);
    const auto planned = [&](const model::Model& model) {
        engine_ = cli::engine_options(shared);
        engine_.max_sequences = sequences;
        engine_.max_logits = decode::eval_logit_rows(model.spec);
        if (model.spec.diffusion && model.spec.diffusion->block == 0) {
            // Full attention: one text at a time, and the bound of eval masks all of it at once.
            engine_.max_sequences = 1;
            const std::int64_t context = engine_.context > 0 ? engine_.context : model.spec.context;
            engine_.max_logits = std::max(engine_.max_logits, static_cast<int>(context));
        }
        model::require_engine(model, engine_);
    };
    auto model = std::make_shared<model::Model>(model::load_model(
        cli::model_source(shared), {.tokenizer = cli::tokenizer_source(shared.tokenizer),
                                    .progress = progress,
                                    .planned = planned,
                                    .defer_random = cuda,
                                    .ignore_keys = shared.ignore_keys}));
    Ledger sent;
    if (cuda) {
        ThreadPool pool(cli::thread_count(shared));
        weights_ = model::load_to_device(*model, pool, &sent, progress);
        model::release_host_weights(*model);
    } else if (!off.repack) {
        model::repack_weights(*model, cli::thread_count(shared), progress);
    }
    model_ = std::move(model);
    std::unique_ptr<model::Engine> engine = model::make_engine(model_, engine_, weights_);
    engine->ledger().add(sent);
    engine_ = engine->options();
    block_ = engine_.block;
    worker_.reset(new Worker(std::move(engine)));
    if (progress) progress("opening", 1, 1);
    load_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Opened::release() {
    weights_.reset();
    model::release_host_weights(*model_);
}

Worker& Opened::worker() {
    if (!worker_) {
        throw Error::usage({.field = "model", .problem = "is closed", .remedy = "open it again"});
    }
    if (!worker_->here()) {
        throw Error::usage(
            {.field = "model",
             .problem =
                 "was opened before this process was forked, and its threads do not exist here",
             .remedy = "open it in the new process, or start that with spawn"});
    }
    return *worker_;
}

void Opened::refuse_diffusion(const char* what) const {
    if (!model_->spec.diffusion) return;
    throw Error::usage(
        {.field = "model",
         .value = model_->source,
         .problem = std::string("is a diffusion model; ") + what + " needs an autoregressive one",
         .remedy = "use eval(), which supports both"});
}

std::vector<std::int32_t> Opened::encode(std::string_view text, bool special) const {
    return decode::require_tokenizer(*model_).encode(
        text, {.add_special = special, .parse_special = special});
}

std::vector<std::int32_t> Opened::encode_prompt(std::string_view text) const {
    return decode::encode_prompt(*model_, text);
}

std::string Opened::decode(std::span<const std::int32_t> ids) const {
    return decode::require_tokenizer(*model_).decode(ids, true);
}

Opened::ChatPrompt Opened::chat_prompt(std::span<const text::ChatMessage> messages,
                                       text::ChatOptions options) const {
    const text::Tokenizer& tokenizer = decode::require_tokenizer(*model_);
    if (!options.arguments.empty()) {  // they must not break a template that works without them
        text::ChatOptions without = options;
        without.arguments.clear();
        options.require_template = text::ChatWriter(tokenizer, without).has_template();
    }
    const text::ChatWriter writer(tokenizer, std::move(options));
    return {writer.encode(messages, true), writer.stops()};
}

// An engine has room for blocks up to a size; a longer block needs another engine.
void Opened::make_room_for_block(const decode::GenerateOptions& wanted) {
    if (!model_->spec.diffusion) return;
    const int block = wanted.diffusion.block_of(model_->spec);
    if (block <= block_) return;
    model::EngineOptions larger = engine_;
    larger.block = block;
    model::require_engine(*model_, larger);
    block_ = block;
    worker().alone([larger, model = model_, weights = weights_](auto& engine, Ticket&) {
        if (engine->options().block >= larger.block) return;
        engine.reset();  // first: there may be no room for both
        engine = model::make_engine(model, larger, weights);
    });
}

TicketPtr Opened::generate(std::vector<std::int32_t> prompt, const Options& options, bool streams) {
    decode::GenerateOptions wanted = options.of(*model_);
    wanted.keep = decode::Keep::all;
    make_room_for_block(wanted);
    const bool on_host = !options.use_gpu_sampler.value_or(true);
    return worker().generate(std::move(prompt), std::move(wanted), streams, on_host);
}

TicketPtr Opened::logits(std::span<const std::int32_t> ids, float* out) {
    refuse_diffusion("logits()");
    const auto vocab = static_cast<std::size_t>(model_->spec.vocab);
    return worker().alone([ids, out, vocab](auto& engine, Ticket& ticket) {
        read_text(*engine, ids, ticket, [&](std::int64_t first, Tensor logits) {
            const Tensor here = engine->to_host(logits);
            std::memcpy(out + static_cast<std::size_t>(first) * vocab, here.f32(0),
                        static_cast<std::size_t>(here.rows()) * vocab * sizeof(float));
        });
    });
}

TicketPtr Opened::embed(std::vector<std::vector<std::int32_t>> texts, bool last, float* out) {
    refuse_diffusion("embed()");
    const auto dim = static_cast<std::size_t>(model_->spec.dim);
    return worker().alone([texts = std::move(texts), last, out, dim](auto& engine, Ticket& ticket) {
        std::vector<double> sum(dim);
        for (std::size_t i = 0; i < texts.size() && !ticket.cancelled(); ++i) {
            std::fill(sum.begin(), sum.end(), 0.0);
            const auto count = static_cast<std::int64_t>(texts[i].size());
            read_text(*engine, texts[i], ticket, [&](std::int64_t first, Tensor logits) {
                const Tensor hidden = engine->options().cuda
                                          ? model::device_head_input(*engine, logits.rows())
                                          : model::cpu_head_input(*engine, logits.rows());
                for (std::int64_t r = 0; r < hidden.rows(); ++r) {
                    if (last && first + r + 1 < count) continue;
                    const float* row = hidden.f32(r);
                    for (std::size_t j = 0; j < dim; ++j) sum[j] += row[j];
                }
            });
            const double weight = last ? 1 : 1.0 / static_cast<double>(count);
            for (std::size_t j = 0; j < dim; ++j) {
                out[i * dim + j] = static_cast<float>(sum[j] * weight);
            }
        }
    });
}

TicketPtr Opened::eval(std::string text, const EvalAsked& asked,
                       std::shared_ptr<decode::DiffusionEvalResult> result) {
    decode::require_tokenizer(*model_);
    asked.options.require_engine_sampler("eval()");
    const bool fills = model_->spec.diffusion.has_value();
    const auto refuse = [](const char* field, const char* problem) {
        throw Error::usage({.field = field, .problem = problem, .remedy = "leave it out"});
    };
    if (!fills && asked.bound) {
        refuse(
            "bound",
            "only applies to diffusion models; this one is autoregressive, and its NLL is exact");
    }
    if (fills && asked.ends) {
        refuse("ends",
               "only applies to autoregressive models; diffusion models always predict the ends");
    }
    const decode::EvalOptions options{
        .split = asked.split, .limit = asked.limit, .ends = asked.ends};
    decode::DiffusionEvalOptions how;
    if (fills) {
        decode::GenerateOptions wanted;
        wanted.diffusion = how.decoder = asked.options.diffusion_of(model_->spec);
        how.bound = asked.bound.value_or(how.bound);
        make_room_for_block(wanted);
    } else {
        asked.options.require_no_diffusion();
    }
    return worker().alone(
        [text = std::move(text), options, how, fills, result](auto& engine, Ticket& ticket) {
            struct Cancelled {};
            const auto progress = [&](std::string_view, std::uint64_t, std::uint64_t) {
                if (ticket.cancelled()) throw Cancelled{};
            };
            try {
                if (fills) {
                    *result = decode::evaluate_diffusion(*engine, text, options, how, progress);
                } else {
                    result->exact = decode::evaluate(*engine, text, options, progress);
                }
            } catch (const Cancelled&) {  // the caller knows
            }
        });
}

TicketPtr Opened::profile(std::string prompt, const Options& options,
                          std::shared_ptr<decode::Profiled> result) {
    options.require_engine_sampler("profile()");
    decode::GenerateOptions wanted = options.of(*model_);
    wanted.keep = decode::Keep::words;
    make_room_for_block(wanted);
    return worker().alone([prompt = std::move(prompt), wanted, result, seconds = load_seconds_](
                              auto& engine, Ticket& ticket) mutable {
        wanted.cancelled = [&ticket] { return ticket.cancelled(); };
        decode::Profiler profiler(true);
        decode::Generated made = profiler.generate(*engine, prompt, wanted);
        if (ticket.cancelled()) return;  // the caller knows
        *result = profiler.report(*engine, std::move(prompt), std::move(made), seconds);
    });
}

}  // namespace mr::python
