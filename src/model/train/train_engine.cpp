#include "model/train/train_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <vector>

#include "core/comm/comm.h"
#include "core/error.h"

namespace mr::model {
namespace {

// Losses of each grain, squared norms of gradients.
std::size_t sum_bytes(const TrainEngineOptions& options) {
    return (static_cast<std::size_t>(options.grains) + 1) * sizeof(double);
}
// Gradients that passes add to, and one for every level of the tree over grains except its root.
int grad_buffers(const TrainEngineOptions& options) {
    return std::bit_width(static_cast<unsigned>(options.grains));
}
// Elements of the tokens' separate gradient. In a pipeline another stage has the head's.
std::int64_t tokens_apart(const ModelSpec& spec, const TrainEngineOptions& options) {
    const bool here =
        options.apart && spec.tied_embeddings && options.stage() < 2 && !options.pipeline.piped();
    return here ? std::int64_t{spec.vocab} * spec.dim : 0;
}
// Elements of the table's gradient that comes from the pipeline's other end.
std::int64_t other_table_count(const ModelSpec& spec, const TrainEngineOptions& options) {
    const StageSpan span = options.pipeline.span();
    const bool end = span.first() || span.last(spec);
    const bool here = options.pipeline.piped() && spec.tied_embeddings && end;
    return here ? std::int64_t{spec.vocab} * spec.dim : 0;
}
std::vector<comm::Shards> cut_ranges(const std::vector<ParamRange>& ranges,
                                     const TrainEngineOptions& options) {
    std::vector<comm::Shards> out;
    for (const ParamRange& range : ranges) {
        // Both ends of a pipeline cut a tied table alike, although the first has positions after
        // it.
        const comm::Shards cut(range.whole_size, kParamBlock, options.ranks());
        out.push_back(cut.first(range.end - range.begin));
    }
    return out;
}
// Elements whose moments this rank has.
std::int64_t own_count(const ParamLayout& layout, const TrainEngineOptions& options) {
    if (options.stage() == 0) return layout.count;
    std::int64_t count = 0;
    for (const comm::Shards& cut : cut_ranges(param_ranges(layout), options)) {
        count += cut.size(options.rank());
    }
    return count;
}
UnitPieces pieces_of(const ParamLayout& layout, const TrainEngineOptions& options) {
    const std::vector<ParamRange> ranges = param_ranges(layout);
    return unit_pieces(layout, ranges, cut_ranges(ranges, options), options.rank());
}
// Elements of this rank's parameters: f32, and the 16-bit ones that GEMMs read, which may be the
// only copy of matrices.
struct ParamCounts {
    std::int64_t masters = 0, copy = 0;
};
ParamCounts param_counts(const ParamLayout& layout, const UnitPieces& units,
                         const TrainEngineOptions& options, DType compute) {
    const bool slim = options.bf16_masters && compute != DType::f32;
    const std::int64_t rest = layout.count - layout.decayed;
    if (options.stage() == 3) return {(slim ? 0 : units.matrices) + rest, units.matrices};
    return {(slim ? 0 : layout.decayed) + rest, layout.count};
}
std::size_t block_bytes(const ParamLayout& layout) {
    const std::size_t cuts = block_cuts(param_ranges(layout)).size();
    std::size_t bytes =
        TrainOps::padded(cuts * sizeof(std::int64_t)) + TrainOps::padded(cuts * sizeof(double));
    if (!layout.all) {  // those of the whole, too
        const std::size_t whole = block_cuts(param_ranges(param_layout(layout.spec))).size() - 1;
        bytes += TrainOps::padded(whole * sizeof(double));
    }
    return bytes;
}

std::unique_ptr<TrainOps> make_ops(const ModelSpec& spec, const TrainEngineOptions& options) {
    require_trainable_heads(spec, options.cuda);
    require_layers(spec, train_takes, spec.name, "training", "train another model");
    MR_CHECK(options.shape.block == (spec.diffusion ? spec.diffusion->block : 0) &&
                 options.shape.seq % std::max(1, options.shape.block) == 0,
             "a model that fills in blocks is trained on whole blocks of its own");
    return options.cuda ? make_cuda_train_ops(options.threads)
                        : make_cpu_train_ops(options.threads);
}

TrainShape whole_shape(const ModelSpec& spec, const TrainEngineOptions& options, DType compute) {
    TrainShape shape = options.shape;
    if (shape.head_rows <= 0) shape.head_rows = default_head_rows(spec, shape.half(), compute);
    if (shape.head_step <= 0) {
        // For a pass of 64 x 512 tokens, multiples of 1,024: 2.5% more rows, and one or two
        // different row counts.
        const bool in_steps = shape.block > 0 && compute != DType::f32;
        shape.head_step = in_steps ? std::max<std::int64_t>(shape.half() / 32 / 64 * 64, 64) : 1;
    }
    if (options.pipeline.piped()) shape.slots = options.pipeline.on_their_way + 1;
    return shape;
}

MemoryPlan plan_with(const ModelSpec& spec, const TrainEngineOptions& options,
                     const TrainOps& ops) {
    const DType compute = ops.compute_type();
    const TrainShape shape = whole_shape(spec, options, compute);
    const StageSpan span = options.pipeline.span();
    const ParamLayout layout = param_layout(spec, span);
    const auto count = static_cast<std::uint64_t>(layout.count);
    const int stage = options.stage();
    const UnitPieces units = pieces_of(layout, options);
    MemoryPlan plan;
    const auto taken = TrainOps::padded;
    const ParamCounts params = param_counts(layout, units, options, compute);
    plan.add("parameters", taken(static_cast<std::uint64_t>(params.masters) * 4));
    if (compute != DType::f32) {
        plan.add(fmt::format("parameters in {}", dtype_name(compute)),
                 taken(dtype_bytes(compute, static_cast<std::size_t>(params.copy))));
    }
    const auto apart = static_cast<std::uint64_t>(tokens_apart(spec, options));
    const auto other = static_cast<std::uint64_t>(other_table_count(spec, options));
    plan.add("gradients", (stage < 2 ? static_cast<std::uint64_t>(grad_buffers(options)) *
                                           taken((count + apart) * 4)
                                     : GradShards::share_bytes(units, options.grains)) +
                              taken(other * 4));
    plan.add("optimizer", 2 * taken(static_cast<std::uint64_t>(own_count(layout, options)) * 4));
    if (stage >= 2) {
        plan.add("unit buffers", GradShards::buffer_bytes(units) +
                                     (stage == 3 ? ParamShards::buffer_bytes(units, compute) : 0));
    }
    if (options.ranks() > 1) {
        const std::uint64_t bytes = options.exchange->memory_bytes(units.cuts(), stage == 0);
        if (bytes > 0) plan.add("exchange", bytes);
    }
    const MemoryPlan pass = TrainPass::plan(spec, shape, options.recompute, compute,
                                            {span, options.pipeline.on_their_way});
    for (const MemoryPlan::Item& item : pass.items()) {
        plan.add(item.name, item.bytes);
    }
    plan.add("scratch",
             ops.scratch_bytes(spec, shape) + taken(sum_bytes(options)) + block_bytes(layout));
    return plan;
}

// Which options to change so that it fits, in words.
std::string what_fits(const ModelSpec& spec, TrainEngineOptions options, const TrainOps& ops,
                      std::uint64_t available) {
    std::string out;
    const int asked = options.shape.sequences;
    options.shape.head_rows = 0;
    for (const Recompute recompute : {Recompute::none, Recompute::light, Recompute::full}) {
        if (recompute < options.recompute) continue;
        TrainEngineOptions tried = options;
        tried.recompute = recompute;
        int low = 0, high = asked;  // known to fit, may fit
        while (low < high) {
            tried.shape.sequences = low + (high - low + 1) / 2;
            if (plan_with(spec, tried, ops).total() <= available) {
                low = tried.shape.sequences;
            } else {
                high = tried.shape.sequences - 1;
            }
        }
        if (low > 0) {
            out += fmt::format("{}--recompute {} with --batch {}", out.empty() ? "" : ", or ",
                               recompute_name(recompute), low);
            if (low < asked) out += fmt::format(" --accumulate {}", (asked + low - 1) / low);
        }
        if (low == asked) break;
    }
    return out.empty() ? "use a smaller model or a shorter --seq" : "what would fit: " + out;
}

}  // namespace

MemoryPlan TrainEngine::plan(const ModelSpec& spec, const TrainEngineOptions& options) {
    return plan_with(spec, options, *make_ops(spec, options));
}

TrainEngine::TrainEngine(const ModelSpec& spec, const TrainEngineOptions& options)
    : whole_(param_layout(spec)),
      layout_(param_layout(spec, options.pipeline.span())),
      options_(options),
      ops_(make_ops(spec, options)),
      span_(options.pipeline.span()) {
    options_.shape = whole_shape(spec, options, ops_->compute_type());
    plan_ = plan_with(spec, options_, *ops_);
    const std::uint64_t available = ops_->memory_bytes();
    if (available > 0 && plan_.total() > available) {
        plan_.require(available, what_fits(spec, options_, *ops_, available));
    }
    slim_ = options_.bf16_masters && ops_->compute_type() != DType::f32;
    MR_CHECK(options_.grains > 0 && std::has_single_bit(static_cast<unsigned>(options_.grains)),
             "grains are a power of two");
    ranges_ = param_ranges(layout_);
    shards_ = cut_ranges(ranges_, options_);
    own_ = {{0, layout_.count, 0}};
    if (options_.stage() > 0) {
        own_ = shares_of(ranges_, shards_, options_.rank());
    } else if (options_.pipeline.piped()) {  // every range has its own place in the whole
        own_.clear();
        for (const ParamRange& range : ranges_) {
            own_.push_back({range.begin, range.end, range.begin});
        }
    }
    if (options_.pipeline.piped()) {
        MR_CHECK(options_.pipeline.link && options_.stage() < 2, "replicas share moments at most");
        MR_CHECK(options_.apart, "stages add up apart");
    }
    units_ = pieces_of(layout_, options_);
    take_state();
    take_blocks();
    if (options_.pipeline.piped()) find_blocks();
    counted_.assign(static_cast<std::size_t>(options_.shape.slots), 0);
    slots_.assign(static_cast<std::size_t>(options_.pipeline.on_their_way), 0);
    ops_->prepare(spec, options_.shape);
    if (options_.exchange) options_.exchange->attach(ops_->stream());
    if (options_.pipeline.link) options_.pipeline.link->attach(ops_->stream());
    pass_ = std::make_unique<TrainPass>(
        layout_, options_.shape, options_.recompute, *ops_,
        PassStage{span_, options_.pipeline.on_their_way, options_.apart});
}

// Allocates parameters, gradients, moments.
void TrainEngine::take_state() {
    const auto flat = [&](const char* purpose, DType dtype, std::int64_t count) {
        const Shape shape{count};
        return Tensor(ops_->allocate(purpose, Arena::tensor_bytes(dtype, shape)), dtype, shape);
    };
    const DType compute = ops_->compute_type();
    const ParamCounts counts = param_counts(layout_, units_, options_, compute);
    params_ = flat("parameters", DType::f32, counts.masters);
    if (compute != DType::f32) copy_ = flat("parameters for products", compute, counts.copy);
    auto* const base = static_cast<float*>(params_.data);
    if (options_.stage() == 3) {
        const Tensor shares((copy_ ? copy_ : params_).data, compute, {units_.matrices});
        float* const vectors = base + (counts.masters - (layout_.count - layout_.decayed));
        param_shards_ = std::make_unique<ParamShards>(layout_, units_, shares, vectors, *ops_,
                                                      *options_.exchange);
        weights_ = param_shards_->weights();
    } else if (copy_) {
        weights_ = param_views(layout_, copy_.data, compute, base, slim_ ? layout_.decayed : 0);
    } else {
        weights_ = param_views(layout_, base, DType::f32);
    }
    if (options_.stage() >= 2) {
        MR_CHECK(options_.apart, "a tied table has two gradients where ranks share them");
        grad_shards_ = std::make_unique<GradShards>(layout_, units_, options_.grains, *ops_,
                                                    *options_.exchange);
    }
    tokens_count_ = tokens_apart(spec(), options_);
    if (tokens_count_ > 0) tokens_at_ = layout_.count;
    for (int i = 0; i < grad_buffers(options_) && !shares_grads(); ++i) {
        grads_.push_back(flat("gradients", DType::f32, layout_.count + tokens_count_));
        Weights views = param_views(layout_, grads_.back().data, DType::f32);
        if (tokens_at_ >= 0) {
            views.embedding.data = static_cast<float*>(grads_.back().data) + tokens_at_;
        }
        grad_views_.push_back(std::move(views));
    }
    if (!shares_grads()) levels_.assign(grads_.size() - 1, kNone);
    if (const std::int64_t table = other_table_count(spec(), options_); table > 0) {
        other_table_ = flat("gradients", DType::f32, table);
    }
    m_ = flat("optimizer", DType::f32, own_count(layout_, options_));
    v_ = flat("optimizer", DType::f32, own_count(layout_, options_));
}

// Blocks for the norm of the gradient. Where ranks shard gradients, blocks of shares.
void TrainEngine::take_blocks() {
    sums_ = static_cast<double*>(ops_->allocate("sums", sum_bytes(options_)));
    host_cuts_ = block_cuts(ranges_);
    blocks_ = std::ssize(host_cuts_) - 1;
    std::vector<std::int64_t> cuts = host_cuts_;
    const std::size_t cut_bytes = cuts.size() * sizeof(std::int64_t);
    cuts_ = static_cast<std::int64_t*>(ops_->allocate("blocks", cut_bytes));
    squares_ = static_cast<double*>(ops_->allocate("squares", cuts.size() * sizeof(double)));
    if (shares_grads()) {
        std::size_t next = 0;
        for (const Share& own : own_) {
            for (std::int64_t i = block_at(own.begin); i < block_at(own.end); ++i) {
                cuts[next++] = own.at + host_cuts_[static_cast<std::size_t>(i)] - own.begin;
            }
        }
        cuts[next] = units_.shares;
    }
    ops_->write(cuts_, cuts.data(), cut_bytes);
}

TrainEngine::~TrainEngine() = default;

void TrainEngine::put(int slot, std::int64_t counted) {
    const TrainShape& shape = options_.shape;
    std::int64_t& here = counted_[static_cast<std::size_t>(slot)];
    here = counted < 0 ? shape.half() : counted;
    if (shape.block > 0) {
        const SlotParts<std::int32_t> parts(ops_->host_slot(slot), shape);
        const auto from = static_cast<std::size_t>(here);
        std::ranges::fill(parts.rows.subspan(from), 0);
        std::ranges::fill(parts.targets.subspan(from), -1);
        std::ranges::fill(parts.weights.subspan(from), 0);
    }
    ops_->put(slot);
}

Tensor TrainEngine::part(Tensor flat, std::int64_t begin, std::int64_t end) const {
    const std::size_t skipped = dtype_bytes(flat.dtype, static_cast<std::size_t>(begin));
    return {static_cast<std::byte*>(flat.data) + skipped, flat.dtype, {end - begin}};
}

void TrainEngine::accumulate(int slot, double scale, bool ends_grain) {
    pass_forward(slot, false, hooks(ends_grain && grain_ + 1 == options_.grains));
    backward(scale, ends_grain);
}

void TrainEngine::forward(int slot, bool more) {
    MR_CHECK(!param_shards_, "ranks that share parameters make passes as a whole");
    pass_forward(slot, more, {});
}

void TrainEngine::pass_forward(int slot, bool more, const PassHooks& hooks) {
    const int number = forwards_++;
    slots_[static_cast<std::size_t>(number) % slots_.size()] = slot;
    const bool piped = options_.pipeline.piped();
    if (piped && number == 0) ask_for_gradient();
    if (piped) await_input(number, more);
    pass_->forward(weights_, slot, number, hooks);
    if (piped) send_output(number);
}

void TrainEngine::backward(double scale, bool ends_grain, bool more) {
    const int number = backwards_++;
    const int slot = slots_[static_cast<std::size_t>(number) % slots_.size()];
    scale_ = scale;
    last_counted_ = counted(slot);
    const bool last = ends_grain && grain_ + 1 == options_.grains;
    MR_CHECK(ends_grain || !shares_grads(), "a grain is one pass where ranks share gradients");
    const Weights& grads = shares_grads() ? grad_shards_->begin() : grad_views_[leaf_];
    if (options_.pipeline.piped()) await_gradient(number, more);
    pass_->backward(weights_, grads, slot, static_cast<float>(scale), last_counted_, number,
                    hooks(last));
    if (options_.pipeline.piped()) send_gradient(number);
    if (last_stage()) ops_->add_sum(sums_ + grain_, last_losses());
    if (!ends_grain || last) return;
    if (shares_grads()) {
        ++grain_;
    } else {
        close_grain();
    }
}

TrainEngine::StepResult TrainEngine::update(const ops::AdamW& with) {
    ops::AdamW step = with;
    step.bf16_masters = options_.bf16_masters;
    if (options_.exchange) options_.exchange->finish();
    end_passes();
    if (tokens_at_ >= 0) add_tokens();
    if (has_table_copy()) add_other_table();
    const Tensor grads = shares_grads() ? grad_shards_->sums() : part(leaf(), 0, layout_.count);
    const double* const norm = add_squares(grads);
    if (shares_state()) {
        step_shares(step, grads, norm);
    } else {
        ops_->adamw(step, params_, copy_, grads, m_, v_, layout_.decayed, norm);
    }
    std::vector<double> sums(static_cast<std::size_t>(options_.grains) + 1);
    ops_->read(sums.data(), sums_, sum_bytes(options_));
    const double squares = sums.back();
    sums.pop_back();
    const std::vector<double> zeros(sums.size());
    ops_->write(sums_, zeros.data(), zeros.size() * sizeof(double));
    levels_.assign(levels_.size(), kNone);
    grain_ = 0;
    StepResult out;
    if (options_.exchange) sums = gather_losses(sums);
    out.loss = comm::tree_sum(std::move(sums)) * scale_;
    if (options_.pipeline.piped()) {
        out.loss = options_.pipeline.link->gather({&out.loss, 1}).back();
    }
    out.grad_norm = std::sqrt(squares);
    out.skipped = !std::isfinite(squares);
    return out;
}

double TrainEngine::evaluate(int slot, bool more) {
    const int number = evaluated_++;
    last_counted_ = counted(slot);
    PassHooks hooks;
    if (param_shards_) {
        hooks.enter = [this](int unit, bool) { param_shards_->enter(unit, false, false); };
    }
    if (options_.pipeline.piped()) await_input(number, more);
    pass_->forward(weights_, slot, number, hooks);
    if (options_.pipeline.piped()) send_output(number);
    pass_->losses_of(weights_, slot, last_counted_, number, hooks);
    if (!more) end_passes();
    if (!last_stage()) return 0;
    ops_->add_sum(sums_, last_losses());
    double sum = 0;
    ops_->read(&sum, sums_, sizeof sum);
    const double zero = 0;
    ops_->write(sums_, &zero, sizeof zero);
    return sum;
}

void TrainEngine::read_losses(std::span<float> out) {
    const Tensor losses = last_losses();
    MR_CHECK(out.size_bytes() == losses.bytes(), "there is room for every token's loss");
    ops_->read(out.data(), losses.data, losses.bytes());
}

void TrainEngine::read_grads(std::span<float> out) {
    MR_CHECK(!shares_grads(), "this rank has all gradients");
    const Tensor grads = part(leaf(), 0, layout_.count);
    MR_CHECK(out.size_bytes() == grads.bytes(), "there is room for all gradients");
    ops_->read(out.data(), grads.data, grads.bytes());
}

std::uint64_t TrainEngine::bytes_saved_by_recompute() const {
    TrainEngineOptions options = options_;
    options.recompute = Recompute::none;
    return plan_with(spec(), options, *ops_).total() - plan_.total();
}

}  // namespace mr::model
