#include "bench/diffusion/diffusion.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "decode/host_guess.h"
#include "decode/open_sequence.h"

namespace mr::diffusion {
namespace {

// Adds its lifetime to a sum of seconds.
class Timed {
  public:
    explicit Timed(double& sum) : sum_(sum) {}
    void without(double seconds) { sum_ -= seconds; }
    ~Timed() { sum_ += Moment::now().seconds_since(start_); }
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

  private:
    double& sum_;
    const Moment start_ = Moment::now();
};

class Watched {
  public:
    Watched(model::Engine& engine, bool on) : engine_(engine), on_(on) { set(on_); }
    ~Watched() { set(false); }
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;

  private:
    void set(bool value) {
        if (!on_) return;
        engine_.watch(value);
        engine_.ledger().time_copies(value);
    }
    model::Engine& engine_;
    const bool on_;
};

double copy_seconds(const Ledger& ledger) {
    return ledger.host_to_device().seconds + ledger.device_to_host().seconds;
}

enum class Clock {
    whole,    // of the run
    stages,   // of each stage of each pass; the host drives the passes
    forward,  // only of the forward of passes
};

Measured run(model::Engine& engine, SortedRows* sorted, const Rung& rung,
             const ops::SampleParams& sampling, std::span<const std::int32_t> prompt,
             std::int64_t tokens, Clock clock) {
    const decode::OpenSequence open(engine.cache());
    const model::SeqId seq = open.id();
    decode::BlockText text(engine.model().spec, rung.options, sampling, prompt, tokens);
    MR_CHECK(engine.try_reserve(seq, 0, std::ssize(prompt) + tokens), "the pool has room");
    const auto step = static_cast<std::size_t>(engine.options().max_batch);
    const auto prefix = static_cast<std::size_t>(text.prefix());
    for (std::size_t done = 0; done < prefix;) {
        const auto cut = static_cast<std::size_t>(text.cut());
        const std::size_t count = std::min(prefix - done, std::max(step / cut * cut, cut));
        const model::BatchItem item{.seq = seq,
                                    .tokens = prompt.subspan(done, count),
                                    .logits = model::BatchItem::Logits::none,
                                    .form = model::form_of_prompt(std::ssize(prompt)),
                                    .mask = text.mask()};
        engine.submit({&item, 1});
        done += count;
    }
    engine.synchronize();

    Measured out;
    std::vector<ops::Guess> guesses;
    std::vector<std::byte> scratch;
    const Watched watch(engine, clock == Clock::stages);
    const Ledger before = engine.ledger();
    const Moment start = Moment::now();
    const auto opened = text.open(engine.cache(), seq);
    out.alone = rung.sampler == Sampler::block && opened && engine.takes_block(*opened);
    if (out.alone && clock != Clock::stages) {
        engine.open_block(*opened);
        for (bool more = true; more; more = text.open_next()) {
            model::Engine::ForwardTimes forward;
            if (clock == Clock::forward) forward = engine.time_forward();
            const model::FilledBlock filled = engine.fill_block();
            out.forward_alone +=
                forward.first +
                static_cast<double>(filled.passes - forward.first_passes) * forward.again;
            text.take(filled);
            out.ids.insert(out.ids.end(), text.block().begin(), text.block().end());
        }
    }
    for (bool more = out.ids.empty(); more;) {
        const model::BatchItem item = text.next(engine.cache(), seq);
        guesses.resize(text.places().size());
        const bool by_engine = rung.sampler == Sampler::engine || rung.sampler == Sampler::block;
        Tensor logits;
        if (by_engine) {
            engine.submit({&item, 1}, text.places(), guesses);
            for (const ops::Guess& guess : guesses) ops::check_guess(guess);
        } else {
            logits = engine.submit({&item, 1});
        }
        for (const Stage& stage : engine.take_stages()) {
            (stage.kind == OpKind::lm_head  ? out.head
             : stage.kind == OpKind::sample ? out.sampling
                                            : out.forward) += stage.work.seconds;
        }
        if (!by_engine) {
            const double copied = copy_seconds(engine.ledger());
            Timed timed(out.sampling);
            if (rung.sampler == Sampler::host) {
                decode::guess_on_host(engine, logits, text.places(), guesses, scratch);
                for (const ops::Guess& guess : guesses) ops::check_guess(guess);
            } else {
                sorted->guess(logits, text.places(), guesses);
            }
            timed.without(copy_seconds(engine.ledger()) - copied);
        }
        out.selection_bytes += guesses.size() * sizeof(ops::Guess);
        const Timed timed(out.selection);
        text.take(guesses);
        if (!text.filled()) continue;
        out.ids.insert(out.ids.end(), text.block().begin(), text.block().end());
        more = text.open_next();
    }
    out.seconds = Moment::now().seconds_since(start);
    out.tokens = tokens;
    out.passes = text.passes();
    const Ledger ledger = engine.ledger().since(before);
    const OpRecord head = ledger.op(OpKind::lm_head), drawn = ledger.op(OpKind::sample);
    const OpRecord rest = ledger.total();
    if (!engine.options().cuda) {  // its ops record their times
        out.head = head.seconds;
        if (rung.sampler != Sampler::host) out.sampling = drawn.seconds;
        out.forward = rest.seconds - head.seconds - drawn.seconds;
    }
    out.head_bytes = head.bytes();
    out.sampling_bytes = drawn.bytes();
    out.forward_bytes = rest.bytes() - head.bytes() - drawn.bytes();
    out.to_device = ledger.host_to_device().bytes;
    out.to_host = ledger.device_to_host().bytes;
    out.copies = copy_seconds(ledger);
    return out;
}

}  // namespace

const char* sampler_name(Sampler sampler) {
    switch (sampler) {
        case Sampler::host:
            return "host";
        case Sampler::sorted:
            return "sorted";
        case Sampler::engine:
            return "engine";
        case Sampler::block:
            return "block";
    }
    return "";
}

#ifndef MR_CUDA
std::unique_ptr<SortedRows> SortedRows::make(const Context&, std::int64_t, std::int64_t,
                                             std::int32_t) {
    return nullptr;
}
#endif

Measured measure(model::Engine& engine, SortedRows* sorted, const Rung& rung,
                 const ops::SampleParams& sampling, std::span<const std::int32_t> prompt,
                 std::int64_t tokens, int reps) {
    const auto run_with = [&](Clock clock) {
        return run(engine, sorted, rung, sampling, prompt, tokens, clock);
    };
    run_with(Clock::whole);
    Measured best;
    for (int rep = 0; rep < std::max(reps, 1); ++rep) {
        Measured one = run_with(Clock::whole);
        if (rep == 0 || one.seconds < best.seconds) best = std::move(one);
    }
    Measured out = run_with(Clock::stages);
    MR_CHECK(out.ids == best.ids, "a clock changes no token");
    if (best.alone) {
        const Measured forward = run_with(Clock::forward);
        MR_CHECK(forward.ids == best.ids, "a clock changes no token");
        out.forward_alone = forward.forward_alone;
        // The kernel that settles ids writes them to the host.
        out.copies = 0;
    }
    out.alone = best.alone;
    out.seconds = best.seconds;
    out.to_device = best.to_device;
    out.to_host = best.to_host;
    return out;
}

}  // namespace mr::diffusion
