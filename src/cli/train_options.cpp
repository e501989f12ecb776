#include "cli/train_options.h"

#include <fmt/format.h>

#include "core/error.h"
#include "train/parallel/schedule.h"

namespace mr::cli {

void TrainAsked::check() const {
    const auto refuse = [&](const std::vector<std::string>& names, const char* problem,
                            const char* remedy) {
        for (const std::string& name : names) {
            if (!command.given(name)) continue;
            throw Error::usage({.field = name, .problem = problem, .remedy = remedy});
        }
    };
    // A negative value means the default; it cannot be given.
    if (command.given("--min-lr") && train.min_lr < 0) {
        throw Error::usage({.field = "--min-lr",
                            .value = fmt::format("{}", train.min_lr),
                            .problem = "must not be negative"});
    }
    if (command.given("--warmup") && train.warmup < 0) {
        throw Error::usage({.field = "--warmup",
                            .value = fmt::format("{}", train.warmup),
                            .problem = "must not be negative"});
    }
    if (!resume.empty()) {
        if (command.given("--schedule") && train::schedule_of(train.schedule)) {
            throw Error::usage({.field = "--schedule",
                                .value = train.schedule,
                                .problem = "is only for new runs",
                                .remedy = "give --pipeline-schedule with --resume"});
        }
        for (const auto* names : {&of_models, &of_new_runs}) {
            refuse(*names, "cannot be changed by --resume: the run has its own",
                   "leave it out, or start a new run with --init");
        }
        return;
    }
    if (train::schedule_of(train.schedule)) {
        refuse({"--pipeline-schedule"}, "and --schedule both say how stages take turns",
               "leave one of the two out");
    }
    if (train.pipeline == 1) {
        refuse({"--pipeline-schedule"}, "only applies with --pipeline",
               "give that, or leave it out");
        if (train::schedule_of(train.schedule)) {
            throw Error::usage({.field = "--schedule",
                                .value = train.schedule,
                                .problem = "only applies with --pipeline",
                                .remedy = "give that, or leave it out"});
        }
    }
    if (train.schedule != "wsd") {
        refuse({"--decay"}, "only applies with --schedule wsd", "give that, or leave it out");
    }
    if (!train.diffusion()) {
        refuse({"--block", "--diffusion-weight"}, "is of --objective diffusion",
               "give that, or leave it out");
    }
    if (train.data.empty() || train.out.empty()) {
        throw Error::usage({.field = train.data.empty() ? "--data" : "--out",
                            .problem = "is needed for a new run",
                            .remedy = "give --data FOLDER --out RUN, or --resume RUN"});
    }
    if (!train.init.empty()) {
        refuse(of_models, "is set by the model of --init", "leave one of the two out");
    }
}

std::shared_ptr<TrainAsked> add_train_options(const Command& app) {
    auto options = std::make_shared<TrainAsked>(
        app.add_subcommand("train", "Train a model on packed text, or resume a run"));
    train::TrainOptions& t = options->train;
    const Command& c = options->command;
    // Whether --resume takes an option is said where it is defined, so that none is forgotten.
    const auto of_model = [&](const char* name, auto& to, const char* about) {
        options->of_models.emplace_back(name);
        return c.add_option(name, to, about);
    };
    const auto of_new_run = [&](const char* name, auto& to, const char* about) {
        options->of_new_runs.emplace_back(name);
        return c.add_option(name, to, about);
    };
    const auto changed = [&](const char* name, auto member, const char* about) {
        options->changes.push_back(
            {name, [member](train::TrainOptions& to, const train::TrainOptions& from) {
                 to.*member = from.*member;
             }});
        return c.add_option(name, t.*member, about);
    };
    c.group("A new model");
    of_model("--model", t.model.family, "llama, mistral, qwen2, qwen3, gpt2 or gpt-neox")
        .shown_as("FAMILY")
        .shows_default();
    of_model("--dim", t.model.dim, "Width of the residual stream").shows_default();
    of_model("--layers", t.model.layers, "Layers").shows_default();
    of_model("--heads", t.model.heads, "Attention heads").shows_default();
    of_model("--kv-heads", t.model.kv_heads, "Heads of keys and values; default: --heads");
    of_model("--head-dim", t.model.head_dim, "Size of a head; default: --dim / --heads").rare();
    of_model("--hidden", t.model.hidden, "Width of the MLP; default: the family's default");
    of_model("--context", t.model.context, "Context length of the model; default: --seq");
    of_model("--tied", t.model.tied, "Whether the LM head is the embedding table")
        .one_of({"yes", "no"})
        .rare();
    c.group("The run");
    of_new_run("--init", t.init,
               "Start from this model, or a bundled model's name, instead of a new one")
        .shown_as("MODEL");
    changed("--data", &train::TrainOptions::data, "A folder made by 'millrace data pack'")
        .shown_as("FOLDER");
    of_new_run("--out", t.out, "The run's folder: checkpoints, metrics.jsonl, report.html")
        .shown_as("FOLDER");
    c.add_option("--resume", options->resume,
                 "Resume this run from its newest checkpoint, bit for bit")
        .shown_as("RUN");
    changed("--steps", &train::TrainOptions::steps, "Steps of the optimizer").shows_default();
    of_new_run("--batch", t.batch, "Sequences per pass").shows_default();
    of_new_run("--seq", t.seq, "Tokens per sequence").shows_default();
    of_new_run("--accumulate", t.accumulate, "Passes per step").shows_default();
    options->of_new_runs.emplace_back("--bos");
    c.add_flag("--bos", t.bos,
               "Begin every sequence, and later every text, with the tokenizer's beginning-of-text "
               "token");
    add_json_option(c, options->shared);
    c.group("The objective");
    of_new_run("--objective", t.objective,
               "ar: the next token; diffusion: unknown tokens of a block, in any order")
        .one_of({"ar", "diffusion"})
        .shows_default();
    of_new_run("--block", t.block, "diffusion: tokens per block").shows_default();
    of_new_run("--diffusion-weight", t.diffusion_weight,
               "diffusion: a masked token counts 1 / the rate of masks; none: once, and every "
               "sequence comes twice with complementary masks")
        .one_of({"1/t", "none"})
        .shows_default();
    c.group("The optimizer");
    of_new_run("--lr", t.lr,
               fmt::format("Learning rate after the warm-up; default: {}, or {} with --init", t.lr,
                           kInitRate)
                   .c_str());
    of_new_run("--min-lr", t.min_lr, "... at the end; default: --lr / 10");
    of_new_run("--warmup", t.warmup,
               "Warm-up steps; default: a twentieth of --steps, at most 1000");
    of_new_run(
        "--schedule", t.schedule,
        "Learning-rate schedule; wsd: warm up, stay, decay. 1f1b, gpipe: as --pipeline-schedule")
        .one_of({"cosine", "wsd", "constant", "1f1b", "gpipe"})
        .shows_default();
    of_new_run("--decay", t.decay, "wsd: share of the steps, at the end, in which the rate falls")
        .shows_default();
    of_new_run("--weight-decay", t.weight_decay, "AdamW's weight decay; not for norms and biases")
        .shows_default();
    of_new_run("--beta1", t.beta1, "Of AdamW").shows_default().rare();
    of_new_run("--beta2", t.beta2, "Of AdamW").shows_default().rare();
    of_new_run("--clip", t.clip, "Maximum norm of the gradient; 0: no limit").shows_default();
    of_new_run("--masters", t.masters,
               "Type of the matrices between steps; bf16, with stochastic rounding, saves 4 bytes "
               "per parameter on a GPU")
        .one_of({"f32", "bf16"})
        .shows_default()
        .rare();
    of_new_run("--seed", t.seed,
               "Seed of the weights, the order of the data, diffusion masks, and the rounding of "
               "bf16 masters")
        .shows_default();
    changed("--max-skips", &train::TrainOptions::max_skips,
            "Steps in a row without a finite gradient after which the run stops")
        .shows_default()
        .rare();
    c.group("Checkpoints, validation and samples");
    changed("--eval-every", &train::TrainOptions::eval_every,
            "Steps between validations; 0: at the end")
        .shows_default();
    changed("--eval-batches", &train::TrainOptions::eval_batches, "Batches per validation; 0: all")
        .shows_default();
    changed("--save-every", &train::TrainOptions::save_every,
            "Steps between checkpoints; 0: at the end")
        .shows_default();
    changed("--sample-every", &train::TrainOptions::sample_every,
            "Steps between samples; 0: at the end")
        .shows_default();
    changed("--sample-tokens", &train::TrainOptions::sample_tokens, "Length of a sample; 0: none")
        .shows_default();
    changed("--prompt", &train::TrainOptions::prompt, "What samples begin with").shown_as("WORDS");
    changed("--keep", &train::TrainOptions::keep, "Checkpoints to keep; 0: all").shows_default();
    c.group("Machine");
    changed("--recompute", &train::TrainOptions::recompute,
            "What to recompute in the backward pass, to save memory")
        .one_of({"none", "light", "full"})
        .shows_default();
    changed("--prefetch", &train::TrainOptions::prefetch, "Batches read ahead; 0: none")
        .shows_default()
        .rare();
    add_machine_options(c, options->shared);
    c.group("Several ranks (mpirun)");
    of_new_run("--grains", t.grains,
               "Parts that a step is summed from: a power of two that the ranks divide. Runs of "
               "equal grains have equal bits on any number of ranks; default: the ranks");
    changed("--zero", &train::TrainOptions::zero,
            "What to shard over the ranks: 1: the optimizer's moments; 2: and gradients; 3: and "
            "parameters")
        .shows_default();
    changed("--pipeline", &train::TrainOptions::pipeline,
            "Stages to divide the layers into, one per rank; more ranks are replicas of all stages")
        .shows_default();
    changed("--micro-batches", &train::TrainOptions::micro_batches,
            "Parts of a step that go through the stages one after another, a power of two: grains "
            "/ replicas");
    changed("--pipeline-schedule", &train::TrainOptions::pipeline_schedule,
            "1f1b: a stage starts a backward pass as soon as it can; gpipe: all forward passes, "
            "then all backward passes")
        .one_of({"1f1b", "gpipe"})
        .shows_default();
    changed("--reduce", &train::TrainOptions::reduce,
            "exact: the same bits on any number of ranks; fast: NCCL's own sum, in bf16")
        .one_of({"exact", "fast"})
        .shows_default()
        .rare();
    changed("--bucket", &train::TrainOptions::bucket, "MiB of gradients sent at a time")
        .shows_default()
        .rare();
    c.add_option("--comm-timeout", options->timeout,
                 "Seconds after which a rank that does not answer counts as lost; 0: never")
        .range(0.0, 1e6)
        .shows_default()
        .rare();
    c.footer(
        "Examples:\n"
        "  millrace train --model llama --dim 256 --layers 6 --heads 8 --kv-heads 4 --data data/ "
        "\\\n"
        "      --out runs/story --steps 5000 --batch 64 --seq 512\n"
        "  millrace train --init model.gguf --data data/ --out runs/tuned --lr 1e-4\n"
        "  millrace train --objective diffusion --block 16 --init model.gguf --data data/ --out "
        "runs/d\n"
        "  millrace train --resume runs/story\n"
        "  millrace run runs/story -p \"Once upon a time\"");
    return options;
}

}  // namespace mr::cli
