// What a run sets up before its first step: data, engine, folder.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <span>
#include <utility>

#include "core/cpu.h"
#include "core/error.h"
#include "core/mapped_file.h"
#include "core/thread_pool.h"
#include "model/io/source.h"
#include "model/io/write_model.h"
#include "ops/linear/gemm_library.h"
#include "text/tokenizer_json_writer.h"
#include "train/mask_token.h"
#include "train/run.h"
#include "train/state_file.h"

namespace mr::train {
namespace {

namespace fs = std::filesystem;

// Checks that a model can be trained here on this data.
void check_spec(const model::ModelSpec& spec, const TrainOptions& options, const Dataset& data) {
    const std::string name = options.init.empty() ? "new model" : options.init;
    if (data.vocab > static_cast<std::uint32_t>(spec.vocab)) {
        throw Error::input(
            {.file = options.data,
             .field = "vocabulary",
             .value = fmt::format("{}", data.vocab),
             .problem = fmt::format("the model has {} tokens, fewer than the data", spec.vocab),
             .remedy = "pack the data with the model's tokenizer"});
    }
    if (options.seq > spec.context) {
        throw Error::usage(
            {.field = "--seq",
             .value = fmt::format("{}", options.seq),
             .problem = fmt::format("is beyond the model's context of {}", spec.context),
             .remedy = options.init.empty() ? "give a larger --context" : "use at most that"});
    }
    model::require_huggingface_can_hold(spec, name);
}

}  // namespace

// What decides the bits of a step besides options, data and parameters.
std::vector<std::pair<std::string, std::string>> Run::machine() const {
    std::vector<std::pair<std::string, std::string>> out = {
        {"program", events_.program}, {"instructions", isa_name(active_isa())}};
    if (o_.cuda) {  // another GPU or library has other kernels
        const cuda::DeviceInfo gpu = cuda::require_device();
        out.emplace_back("GPU", fmt::format("{}, sm_{}", gpu.name, gpu.sm));
        out.emplace_back("library", cuda::gemm_library().about);
    }
    return out;
}

// A run may go on elsewhere, but its bits are then not those of one machine.
void Run::note_other_machine() {
    auto now = machine();
    std::vector<std::string> other;
    const auto value_in = [](const auto& all, const std::string& name) {
        const auto at = std::ranges::find(all, name, [](const auto& each) { return each.first; });
        return at == all.end() ? std::string("none") : at->second;
    };
    const auto compare = [&](const std::string& name) {
        const std::string was = value_in(state_.machine, name), is = value_in(now, name);
        if (was != is) other.push_back(fmt::format("{} was {}, and is {}", name, was, is));
    };
    if (resumed_ && !state_.machine.empty()) {
        for (const auto& [name, value] : now) compare(name);
        for (const auto& [name, value] : state_.machine) {
            if (value_in(now, name) == "none") compare(name);
        }
    }
    if (!other.empty()) {
        // Another version of the program may compute the same.
        const bool surely =
            value_in(state_.machine, "program") == value_in(now, "program") || other.size() > 1;
        const std::string isa = value_in(state_.machine, "instructions");
        say(fmt::format(
            "the run {} with other bits than at its last checkpoint: {}{}",
            surely ? "goes on" : "may go on", fmt::join(other, "; "),
            isa == isa_name(active_isa())
                ? std::string()
                : fmt::format(" (MILLRACE_ISA={} keeps them on a machine that has it)", isa)));
    }
    state_.machine = std::move(now);
}

// Before the first step: checks what must be the same on all ranks.
void Run::agree() const {
    if (comm_.alone()) return;
    std::vector<std::string> mine = shared_options(o_);
    mine.push_back(fmt::format("step = {}", state_.step));
    mine.push_back(fmt::format("data hash = {:016x}", data_.hash));
    for (const auto& [name, value] : machine()) {
        mine.push_back(fmt::format("{} = {}", name, value));
    }
    std::string text = fmt::format("{}\n", fmt::join(mine, "\n"));
    const int other = comm_.differing(std::as_bytes(std::span(text)));
    if (other < 0) return;
    std::uint64_t size = text.size();
    comm_.broadcast(std::as_writable_bytes(std::span(&size, 1)), 0);
    text.resize(size);
    comm_.broadcast(std::as_writable_bytes(std::span(text)), 0);
    if (comm_.rank() == other) {
        for (const std::string& line : mine) {
            if (("\n" + text).find("\n" + line + "\n") != std::string::npos) continue;
            const std::string name = line.substr(0, line.find(" = "));
            std::size_t at = ("\n" + text).find("\n" + name + " = ");
            at = at == std::string::npos ? text.size() : at;
            throw Error::usage(
                {.field = line,
                 .problem = fmt::format("rank 0 has {}", text.substr(at, text.find('\n', at) - at)),
                 .remedy = "give all ranks the same options, data and program"});
        }
    }
    comm_.barrier();  // the rank that differs ends all of them
    throw Error::usage(
        {.field = "ranks", .problem = fmt::format("rank {} differs from rank 0", other)});
}

// Ranks on the same cores share them.
int Run::threads_of_rank() const {
    if (comm_.alone()) return o_.threads;
    // All ranks take part, even those with a given number.
    const std::uint64_t mine = text_hash(core_set());
    std::vector<std::uint64_t> all(static_cast<std::size_t>(comm_.size()));
    comm_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    if (o_.threads > 0) return o_.threads;
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): this rank is one of them
    return std::max(1, cpu_info().cores / static_cast<int>(std::ranges::count(all, mine)));
}

// Makes the model's tokenizer (not the data's) begin texts as the training sequences begin.
void Run::begin_with_bos() {
    const std::optional<std::int32_t> bos = tokenizer_->bos();
    if (!bos) {
        throw Error::input({.file = data_.tokenizer_path,
                            .field = "--bos",
                            .problem = "the tokenizer names no beginning-of-text token",
                            .remedy = fmt::format(
                                "name one of its tokens as \"bos_token\" in {}, or leave --bos out",
                                fs::path(data_.tokenizer_path)
                                    .replace_filename("tokenizer_config.json")
                                    .string())});
    }
    if (static_cast<std::uint32_t>(*bos) >= data_.vocab) {
        throw Error::input({.file = o_.data,
                            .field = "vocab",
                            .value = fmt::format("{}", data_.vocab),
                            .problem = fmt::format("is not above {}, the tokenizer's "
                                                   "beginning-of-text token",
                                                   *bos),
                            .remedy = "pack the data again"});
    }
    text::TokenizerData begins = tokenizer_->data();
    if (!begins.add_bos()) begins.prefix.insert(begins.prefix.begin(), *bos);
    // Some readers do not look for it in tokenizer_config.json.
    const auto alone = text::Tokenizer::from_json(tokenizer_json_, data_.tokenizer_path);
    if (alone->data().prefix != begins.prefix) {
        tokenizer_json_ = text::with_tokens_around(tokenizer_json_, begins);
    }
    tokenizer_ = text::Tokenizer::from_data(std::move(begins));
}

void Run::open_data() {
    data_ = Dataset::open(o_.data);
    tokenizer_json_ = read_text_file(data_.tokenizer_path);
    tokenizer_ = data_.open_tokenizer();
    if (o_.bos) begin_with_bos();
    if (o_.diffusion()) {
        // Documents begin as prompts and evaluated texts do.
        if (tokenizer_->bos()) begin_with_bos();
        MaskToken mask = mask_token(tokenizer_, tokenizer_json_);
        mask_ = mask.id;
        tokenizer_ = std::move(mask.tokenizer);
        tokenizer_json_ = std::move(mask.json);
    }
    if (resumed_ && data_.hash != state_.data_hash) {
        throw Error::input(
            {.file = o_.data,
             .field = "data hash",
             .value = fmt::format("{:016x}", data_.hash),
             .problem = fmt::format("the run began with other data, {:016x}", state_.data_hash),
             .remedy = "give that data, or start a new run with --init"});
    }
    if (resumed_ &&
        !checkpoints_.check_tokenizer(state_.step, tokenizer_json_, data_.tokenizer_path)) {
        say(fmt::format("{}/tokenizer.json was changed after it was saved; the run goes on with {}",
                        checkpoints_.folder(state_.step), data_.tokenizer_path));
    }
    state_.data_hash = data_.hash;
    {
        // The dataset's hash is made of the checksums, so it holds if they do.
        ThreadPool pool(o_.threads > 0 ? o_.threads : cpu_info().cores);
        data_.verify(pool, events_.loading);
    }
    // Throws for a corpus shorter than one window.
    BatchOptions windows{.batch = o_.pass_sequences(), .seq = o_.seq, .seed = o_.seed};
    if (o_.bos || o_.diffusion()) windows.first = tokenizer_->bos();
    if (o_.diffusion()) {
        windows.block = o_.block;
        windows.end = data_.end_token;
        windows.copies = o_.copies();
    }
    batches_ = std::make_unique<Batches>(data_.train, windows);
    windows.copies = 1;
    if (Batches::has_windows(data_.val, windows)) {
        windows.shuffle = false;
        val_batches_ = std::make_unique<Batches>(data_.val, windows);
        val_ids_.resize(val_batches_->batch_ids());
    }
}

// If one rank cannot load it, none continues from it.
void Run::load_checkpoint() {
    std::optional<DamagedCheckpoint> damaged;
    try {
        checkpoints_.load(state_.step, *engine_);
    } catch (const DamagedCheckpoint& error) {
        damaged = error;
    }
    if (comm_.most(damaged ? 1 : 0) == 0) return;
    if (damaged) throw DamagedCheckpoint(*damaged);
    throw DamagedCheckpoint({.file = checkpoints_.folder(state_.step),
                             .problem = "another rank could not load it",
                             .remedy = "see what that rank says"});
}

// Checks that all ranks have the same parameters, from the model or checkpoint that each has read.
void Run::agree_on_parameters() {
    if (comm_.alone()) return;
    const std::uint64_t hash = engine_->params_hash();  // of all that was read, kept or not
    const int other = comm_.differing(std::as_bytes(std::span(&hash, 1)));
    if (other < 0) return;
    if (comm_.rank() == other) {
        throw Error::usage({.field = "parameters",
                            .problem = "are not those of rank 0",
                            .remedy = "give all ranks the same --init or --resume, file by file"});
    }
    comm_.barrier();  // that rank ends all of them
}

model::ModelSpec Run::spec_to_train() {
    if (resumed_) return checkpoints_.read_spec(state_.step);
    model::ModelSpec spec;
    if (!o_.init.empty()) {
        init_ = model::load_model(o_.init, {.progress = events_.loading});
        spec = model::trainable_spec(init_->spec);
        if (spec.diffusion && !o_.diffusion()) {
            throw Error::usage({.field = "--init",
                                .value = o_.init,
                                .problem = "is a diffusion model",
                                .remedy = "give --objective diffusion"});
        }
        // A diffusion model may have a mask token that the data's tokenizer lacks.
        const bool own_mask = spec.diffusion && init_->tokenizer &&
                              tokenizer_hash(*init_->tokenizer) == tokenizer_hash(*tokenizer_);
        if (init_->tokenizer && !own_mask) data_.check_tokenizer(*init_->tokenizer, o_.init);
        if (spec.diffusion && spec.diffusion->mask != mask_) {
            throw Error::input({.file = o_.init,
                                .field = "mask token",
                                .value = fmt::format("{}", spec.diffusion->mask),
                                .problem = fmt::format("the data's tokenizer has it at {}", mask_),
                                .remedy = "pack the data with the model's tokenizer"});
        }
    } else {
        spec = new_spec(o_.model, static_cast<int>(data_.vocab), o_.seq);
    }
    check_spec(spec, o_, data_);
    return o_.diffusion() ? model::diffusion_spec(std::move(spec), mask_, o_.block) : spec;
}

void Run::make_engine() {
    const model::ModelSpec spec = spec_to_train();
    check_spec(spec, o_, data_);
    make_links(spec);
    const model::TrainEngineOptions options{.cuda = o_.cuda,
                                            .threads = threads_of_rank(),
                                            .shape = {.sequences = o_.pass_sequences(),
                                                      .seq = o_.seq,
                                                      .block = o_.diffusion() ? o_.block : 0},
                                            .recompute = *model::recompute_of(o_.recompute),
                                            .bf16_masters = o_.masters == "bf16",
                                            .grains = o_.grains / grid_.replicas,
                                            .apart = o_.grains > 1,
                                            .exchange = exchange_.get(),
                                            .zero = grid_.replicas > 1 ? o_.zero : 0,
                                            .pipeline = stage_options()};
    engine_ = std::make_unique<model::TrainEngine>(spec, options);
    if (resumed_) {
        load_checkpoint();
    } else if (init_) {
        engine_->load(*init_);
        init_.reset();
    } else {
        engine_->init(o_.seed);
    }
    if (o_.sample_tokens > 0 && comm_.first() && options.stage() < 3 && !link_) {
        sampler_ = std::make_unique<Sampler>(
            *engine_, tokenizer_, o_, std::numeric_limits<std::uint64_t>::max(), events_.sampling);
    }
}

// Called after an older one was loaded. Damaged checkpoints stay for inspection; the run will reach
// their steps again.
void Run::leave_damaged() {
    for (const Damaged& each : damaged_) {
        const std::string aside = checkpoints_.put_aside(each.step);
        ErrorInfo info = each.error.info();
        info.remedy = fmt::format("going on from step {}", state_.step);
        if (!aside.empty()) info.remedy += fmt::format(" ({} is kept)", aside);
        say(Error::input(std::move(info)).what());
    }
}

// Before every write to the run's folder.
void Run::own_folder() {
    if (!folder_) return;
    folder_->require_own();
    const std::string now = folder_->name();
    if (now == o_.out) return;
    say(fmt::format("{}: was moved to {} while the run writes to it; the run goes on there", o_.out,
                    now));
    o_.out = now;
    checkpoints_.move(now, folder_->at());
}

// A path for reading and writing.
std::string Run::in_folder(const char* name) const {
    return (fs::path(folder_ ? folder_->at() : o_.out) / name).string();
}

void Run::say(const std::string& line) const {
    if (!events_.note) return;
    std::string named = line;
    if (folder_) {  // its path by descriptor says nothing to a user
        const std::string& at = folder_->at();
        for (std::size_t i = 0; (i = named.find(at, i)) != std::string::npos; i += o_.out.size()) {
            named.replace(i, at.size(), o_.out);
        }
    }
    events_.note(named);
}

void Run::open_folder() {
    if (!folder_) return;
    folder_->keep();
    // What was read came by the folder's name.
    if (folder_->name() != o_.out) {
        throw Error::input({.file = o_.out,
                            .problem = "was moved or replaced while the run was being set up",
                            .remedy = "run the command again"});
    }
    checkpoints_.move(o_.out, folder_->at());
    checkpoints_.prepare();
    leave_damaged();
    open_log();
}

std::string Run::why_no_validation() const {
    if (data_.val.tokens() == 0) return o_.data + " holds nothing out for it";
    return fmt::format("the {} tokens held out are fewer than one --seq of {}{}",
                       data_.val.tokens(), o_.seq, o_.diffusion() ? "" : " and the token after");
}

}  // namespace mr::train
