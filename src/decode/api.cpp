// The public API (include/millrace/millrace.h) over the engine.
#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "core/cpu.h"
#include "core/cuda/device.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "decode/eval.h"
#include "decode/prompt.h"
#include "decode/session.h"
#include "millrace/millrace.h"
#include "model/cpu/repack.h"
#include "model/cuda/device_weights.h"
#include "model/engine.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace millrace {
namespace {

// An exception thrown by the caller's callback: it is rethrown to the caller as it is, not as an
// Error.
struct CallbackFailed {
    std::exception_ptr cause;
};

template <typename Body>
auto guarded(Body&& body) -> decltype(body()) {
    try {
        return body();
    } catch (const CallbackFailed& failed) {
        std::rethrow_exception(failed.cause);
    } catch (const mr::Error& error) {
        throw Error(static_cast<Error::Kind>(error.exit_code()), error.what());
    } catch (const std::bad_alloc&) {
        throw Error(Error::Kind::device, "out of memory");
    } catch (const std::exception& error) {
        throw Error(Error::Kind::input, error.what());
    }
}

}  // namespace

struct Model::Impl {
    Impl(std::shared_ptr<const mr::model::Model> loaded, const mr::model::EngineOptions& options,
         std::shared_ptr<const mr::model::DeviceWeights> weights)
        : model(std::move(loaded)),
          engine(mr::model::make_engine(model, options, std::move(weights))) {}

    std::shared_ptr<const mr::model::Model> model;
    std::unique_ptr<mr::model::Engine> engine;
};

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

Model Model::load(const std::string& source, const LoadOptions& options) {
    return guarded([&] {
        if (options.gpu) mr::cuda::require_device();
        mr::model::EngineOptions engine;
        engine.cuda = options.gpu;
        engine.threads = options.threads;
        engine.context = options.context;
        if (options.gpu) engine.max_batch = mr::model::kDeviceBatch;
        // An engine that cannot run is refused before the weights are read or sent.
        const auto planned = [&](const mr::model::Model& model) {
            engine.max_logits = mr::decode::eval_logit_rows(model.spec);
            mr::model::require_engine(model, engine);
        };
        auto model = std::make_shared<mr::model::Model>(
            mr::model::load_model(source, {.tokenizer = options.tokenizer,
                                           .planned = planned,
                                           .defer_random = options.gpu,
                                           .ignore_keys = options.ignore_keys}));
        mr::Ledger sent;
        std::shared_ptr<const mr::model::DeviceWeights> weights;
        if (options.gpu) {
            mr::ThreadPool pool(options.threads > 0 ? options.threads : mr::cpu_info().cores);
            weights = mr::model::load_to_device(*model, pool, &sent);
            mr::model::release_host_weights(*model);
        } else {
            mr::model::repack_weights(*model, options.threads);
        }
        auto impl = std::make_unique<Impl>(std::move(model), engine, std::move(weights));
        impl->engine->ledger().add(sent);
        return Model(std::move(impl));
    });
}

ModelInfo Model::info() const {
    const mr::model::ModelSpec& spec = impl_->model->spec;
    ModelInfo info;
    info.family = spec.family;
    info.format = impl_->model->format;
    info.parameters = spec.parameters();
    info.layers = spec.layers;
    info.dim = spec.dim;
    info.vocab = spec.vocab;
    info.context = impl_->engine->options().context;
    return info;
}

Generation Model::generate(std::string_view prompt, const GenerateOptions& options,
                           const OnText& on_text) {
    return guarded([&] {
        mr::decode::GenerateOptions wanted;
        wanted.max_tokens = options.max_tokens;
        wanted.sampling.temperature = options.temperature;
        wanted.sampling.top_k = options.top_k;
        wanted.sampling.top_p = options.top_p;
        wanted.sampling.min_p = options.min_p;
        wanted.sampling.repeat_penalty = options.repeat_penalty;
        wanted.sampling.seed = options.seed;
        wanted.stop = options.stop;
        mr::decode::Session::OnText forward;
        if (on_text) {
            forward = [&](std::string_view text) {
                try {
                    return on_text(text);
                } catch (...) {
                    throw CallbackFailed{std::current_exception()};
                }
            };
        }
        mr::decode::Generated made =
            mr::decode::Session(*impl_->engine)
                .generate(mr::decode::encode_prompt(*impl_->model, prompt), wanted, forward);
        Generation out;
        out.text = std::move(made.text);
        out.tokens = std::move(made.ids);
        out.stop_reason = mr::decode::stop_reason_name(made.reason);
        out.prompt_tokens = made.prompt_tokens;
        out.tokens_per_second = made.decode.tokens_per_second();
        out.bytes_per_second = made.decode.bytes_per_second();
        out.bytes_per_token = made.decode.bytes_per_token();
        return out;
    });
}

std::vector<std::int32_t> Model::tokenize(std::string_view text, bool special) const {
    return guarded([&] {
        return mr::decode::require_tokenizer(*impl_->model)
            .encode(text, {.add_special = special, .parse_special = special});
    });
}

std::string Model::detokenize(std::span<const std::int32_t> tokens) const {
    return guarded(
        [&] { return mr::decode::require_tokenizer(*impl_->model).decode(tokens, true); });
}

Evaluation Model::evaluate(std::string_view text, const std::string& split) {
    return guarded([&] {
        mr::decode::require_tokenizer(*impl_->model);
        mr::decode::EvalOptions options;
        options.split = split;
        const mr::decode::EvalResult result = mr::decode::evaluate(*impl_->engine, text, options);
        return Evaluation{result.tokens, result.nll, result.perplexity()};
    });
}

}  // namespace millrace
