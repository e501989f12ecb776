#include "train/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/arena.h"
#include "core/error.h"
#include "decode/prompt.h"
#include "decode/session.h"

namespace mr::train {
namespace {

// Steps on a GPU run ahead of the reader of their tokens: all must have ended before the next
// training step changes the parameters.
class Settled {
  public:
    explicit Settled(model::Engine& engine) : engine_(engine) {}
    ~Settled() {
        try {
            engine_.synchronize();
        } catch (const Error&) {  // a lost device: the next step reports it
            return;
        }
    }
    Settled(const Settled&) = delete;
    Settled& operator=(const Settled&) = delete;

  private:
    model::Engine& engine_;
};

// Options of a diffusion model: as `millrace run` without options, in the model's own blocks unless
// they are longer than the decoder takes.
decode::DiffusionOptions filling_in(const model::ModelSpec& spec) {
    decode::DiffusionOptions out;
    if (spec.diffusion) out.block = std::min(spec.diffusion->block, out.kMostBlock);
    return out;
}

}  // namespace

Sampler::Sampler(model::TrainEngine& engine, std::shared_ptr<const text::Tokenizer> tokenizer,
                 const TrainOptions& options, std::uint64_t room,
                 const model::EngineOptions& switches)
    : trained_(engine), tokenizer_(std::move(tokenizer)), options_(options), switches_(switches) {
    if (!engine.ops().on_device()) return;
    try {
        take_device(room);
    } catch (const Error& error) {
        on_device_.reset();
        live_ = {};
        why_not_there_ = error.what();
    }
}

// The model without weights in host memory.
std::shared_ptr<model::Model> Sampler::described() const {
    auto out = std::make_shared<model::Model>();
    out->spec = trained_.spec();
    out->weights = trained_.weights();
    model::release_host_weights(*out);
    out->tokenizer = tokenizer_;
    out->source = options_.out;
    return out;
}

model::EngineOptions Sampler::engine_options(const model::Model& model) const {
    const auto prompt =
        static_cast<std::int64_t>(decode::encode_prompt(model, options_.prompt).size());
    model::EngineOptions out = switches_;
    out.threads = options_.threads;
    out.context = std::min<std::int64_t>(model.spec.context, prompt + options_.sample_tokens + 1);
    if (model.spec.diffusion) out.block = filling_in(model.spec).block_of(model.spec);
    return out;
}

void Sampler::take_device(std::uint64_t room) {
    const std::shared_ptr<const model::Model> model = described();
    model::EngineOptions options = engine_options(*model);
    options.cuda = true;
    options.threads = 1;  // for host work beside the device
    options.max_batch = model::kDeviceBatch;
    const model::Weights& weights = trained_.weights();
    const std::uint64_t needed = model::plan_engine(*model, options).total() -
                                 model::device_weight_bytes(*model) +
                                 model::live_bytes(model->spec, weights);
    room = std::min(room, trained_.ops().memory_bytes());
    if (needed > room) {
        why_not_there_ = fmt::format("they need {} there beside the run, and {} are left",
                                     format_bytes(needed), format_bytes(room));
        return;
    }
    live_ = model::live_weights(model->spec, weights);
    on_device_ = model::make_engine(model, options, live_.weights);
    device_bytes_ = needed;
}

std::optional<std::string> Sampler::text(const std::function<bool()>& cancelled) {
    std::unique_ptr<model::Engine> on_cpu;
    if (on_device_) {
        model::refresh(live_);
        on_device_->cache().forget_all();  // keys and values of the old parameters
    } else {
        const std::shared_ptr<model::Model> copy = described();
        float* params = const_cast<float*>(trained_.host(model::TrainEngine::State::params));
        copy->weights = model::param_views(trained_.layout(), params, DType::f32);
        on_cpu = model::make_engine(copy, engine_options(*copy));
    }
    model::Engine& engine = on_device_ ? *on_device_ : *on_cpu;
    const std::vector<std::int32_t> prompt = decode::encode_prompt(engine.model(), options_.prompt);
    if (static_cast<std::int64_t>(prompt.size()) >= engine.options().context) return std::nullopt;
    const Settled settled(engine);
    decode::Session session(engine);
    decode::GenerateOptions generate;
    generate.max_tokens = options_.sample_tokens;
    generate.sampling.temperature = 0.8f;
    generate.sampling.top_k = 40;
    generate.sampling.seed = options_.seed;
    generate.diffusion = filling_in(engine.model().spec);
    generate.cancelled = cancelled;
    const decode::Generated made = session.generate(prompt, generate);
    if (made.reason == decode::StopReason::cancelled) return std::nullopt;
    return options_.prompt + made.text;
}

}  // namespace mr::train
