#include "serve/desk.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/out_of_memory.h"
#include "core/start_thread.h"
#include "serve/desk_job.h"

namespace mr::serve {
namespace {

double seconds_between(Desk::Clock::time_point from, Desk::Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Failure failure_of(const std::exception_ptr& error) {
    try {
        std::rethrow_exception(error);
    } catch (const Failure& failure) {
        return failure;
    } catch (const Error& e) {
        return Failure::of(e);
    } catch (const std::bad_alloc&) {
        hold_back_memory_again();
        return Failure::of(500, "server_error", "out of memory");
    } catch (const std::exception& e) {
        return Failure::of(500, "server_error", e.what());
    }
}

Desk::Desk(std::unique_ptr<model::Engine> engine, const DeskOptions& options, Metrics& metrics)
    : engine_(std::move(engine)),
      model_(&engine_->model()),
      engine_options_(engine_->options()),
      most_positions_(engine_->most_positions()),
      options_(options),
      metrics_(metrics) {
    metrics_.sequences = options_.sequences;
    metrics_.queue_limit = static_cast<std::int64_t>(options_.queue);
    metrics_.cache_tokens = engine_->cache().free_tokens();
    show();
    thread_ = start_thread([this] { drive(); }, "to drive the engine");
}

Desk::~Desk() {
    {
        const std::lock_guard lock(mutex_);
        leaving_ = draining_ = cut_ = true;
    }
    work_.notify_all();
    thread_.join();
}

// ---- any thread --------------------------------------------------------------------------------

void Desk::generate(const std::string& client, std::vector<Work> works,
                    std::shared_ptr<Sink> sink) {
    auto job = std::make_shared<Job>();
    job->works = std::move(works);
    job->sink = std::move(sink);
    if (options_.most.count() > 0) job->deadline = job->arrived + options_.most;
    std::vector<Unit> units;
    for (std::size_t w = 0; w < job->works.size(); ++w) {
        for (int i = 0; i < job->works[w].choices; ++i) {
            units.push_back({job, w, i, job->left++, nullptr});
        }
    }
    if (units.size() > options_.queue) {
        const std::size_t prompts = job->works.size();
        throw Failure::bad(
            prompts > options_.queue ? "prompt" : "n",
            fmt::format("the request asks for {} texts{}, and {} may wait here at most; ask for "
                        "fewer at once, or serve with a larger --queue",
                        units.size(),
                        prompts > 1 ? fmt::format(" ({} for each of {} prompts)",
                                                  job->works[0].choices, prompts)
                                    : "",
                        options_.queue),
            "invalid_value");
    }
    put(client, std::move(units));
}

void Desk::embed(const std::string& client, std::vector<std::vector<std::int32_t>> texts, bool last,
                 std::shared_ptr<VectorSink> sink) {
    auto embedding = std::make_shared<Embedding>();
    embedding->client = client;
    embedding->texts = std::move(texts);
    embedding->last = last;
    embedding->sink = std::move(sink);
    if (options_.most.count() > 0) embedding->deadline = Clock::now() + options_.most;
    std::vector<Unit> units(1);
    units[0].embedding = std::move(embedding);
    put(client, std::move(units));
}

void Desk::drain() {
    const std::lock_guard lock(mutex_);
    draining_ = true;
}

bool Desk::wait_drained(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    return drained_.wait_for(lock, most, [&] { return idle_; });
}

void Desk::cut() {
    {
        const std::lock_guard lock(mutex_);
        draining_ = cut_ = true;
    }
    work_.notify_all();
}

// ---- the engine's thread -----------------------------------------------------------------------

void Desk::drive() {
    const Failure no_memory = Failure::of(500, "server_error", "out of memory");
    for (bool failed = false, goes_on = true; goes_on;) {
        try {
            // If this throws, it has forgotten some requests: their connections end.
            if (std::exchange(failed, false)) fail_all(no_memory);
            goes_on = turn();
        } catch (const std::bad_alloc&) {
            hold_back_memory_again();
            failed = true;
        }
    }
    scheduler_.reset();
}

// False: leave.
bool Desk::turn() {
    bool cut = false, leaving = false;
    delivery_.flush();
    if (!busy()) delivery_.flush_and_wait();  // when idle, nothing is pending
    {
        std::unique_lock lock(mutex_);
        if (!busy() && waiting_.empty() && dropped_.empty()) {
            idle_ = true;
            drained_.notify_all();
        }
        work_.wait(lock, [&] {
            return leaving_ || cut_ || busy() || !waiting_.empty() || !dropped_.empty();
        });
        cut = std::exchange(cut_, false);
        leaving = leaving_;
    }
    if (cut) fail_all(Failure::draining());
    if (leaving) return false;
    fill();
    embed_piece();
    if (!open_.empty()) step();
    show();
    return true;
}

// Embeddings need no place of a text: the engine keeps a sequence for them. A text that waits for
// pages, in the scheduler or to be embedded, must not be overtaken, so no more are begun until it
// runs.
void Desk::fill() {
    forget_left();
    take_embeddings();
    const auto in_scheduler = [&] {
        return scheduler_ ? scheduler_->running() + scheduler_->waiting() : 0;
    };
    if ((scheduler_ && scheduler_->waiting() > 0) || embedding_waits_) return;
    while (in_scheduler() < static_cast<std::size_t>(options_.sequences)) {
        const std::optional<Unit> unit = next_text();
        if (!unit) break;
        if (!unit->job->over) begin(*unit);
    }
}

void Desk::begin(const Unit& unit) {
    const JobPtr job = unit.job;
    const int choice = unit.choice;
    try {
        if (!scheduler_) {
            scheduler_ = std::make_unique<decode::Scheduler>(*engine_, nullptr, options_.sequences);
            shown_ = {};
        }
        const Work& work = job->works[unit.work];
        decode::GenerateOptions options = work.options;
        options.sampling.seed += static_cast<std::uint64_t>(unit.number);
        options.cancelled = [job] { return job->wants_no_more(); };
        options.on_token = [this, job, choice, last = Clock::time_point::min()](
                               std::int32_t id, const decode::DrawnLogprobs* logprobs) mutable {
            const auto now = Clock::now();
            if (last == Clock::time_point::min()) {
                metrics_.first_token.add(seconds_between(job->arrived, now));
            } else {
                metrics_.between_tokens.add(seconds_between(last, now));
            }
            last = now;
            ++metrics_.generated_tokens;
            delivery_.token(job->sink, choice, id, logprobs);
        };
        if (options.prompt_logprobs >= 0) {
            options.on_prompt = [this, job, choice](std::vector<decode::PromptToken> tokens) {
                const auto list =
                    std::make_shared<std::vector<decode::PromptToken>>(std::move(tokens));
                delivery_.call(
                    [sink = job->sink, choice, list] { sink->prompt(choice, std::move(*list)); });
            };
        }
        if (work.shows_blocks) {
            options.on_pass = [this, job, choice](std::span<const std::int32_t> tokens,
                                                  std::span<const std::uint8_t> settled) {
                delivery_.call([sink = job->sink, choice,
                                ids = std::vector(tokens.begin(), tokens.end()),
                                known = std::vector(settled.begin(), settled.end())] {
                    sink->block(choice, ids, known);
                });
            };
        }
        metrics_.most_length.add(options.max_tokens);
        metrics_.prompt_length.add(static_cast<double>(work.prompt.size()));
        // Made first: a text that the scheduler has and open_ has not would hold its place for
        // ever.
        std::map<decode::Scheduler::Id, Open> entry;
        entry.emplace(0, Open{job, choice});
        auto node = entry.extract(entry.begin());
        node.key() = scheduler_->add(work.prompt, std::move(options),
                                     [this, job, choice](std::string_view text) {
                                         delivery_.text(job->sink, choice, text);
                                         return true;
                                     });
        open_.insert(std::move(node));
        metrics_.in_queue.add(seconds_between(job->arrived, Clock::now()));
        metrics_.prompt_tokens += work.prompt.size();
    } catch (...) {
        fail(job, failure_of(std::current_exception()));
    }
}

void Desk::step() {
    try {
        scheduler_->step();
        take_ended();
    } catch (const std::bad_alloc&) {
        throw;  // drive() fails all requests, and the engine is well
    } catch (...) {
        // A scheduler whose step has thrown must be destroyed, and its requests with it.
        Failure failure = failure_of(std::current_exception());
        failure.status = 500;
        failure.type = "server_error";
        if (failure.param.empty()) healthy_ = false;
        scheduler_.reset();
        for (auto& [id, open] : std::exchange(open_, {})) fail(open.job, failure);
    }
}

void Desk::take_ended() {
    for (auto at = open_.begin(); at != open_.end();) {
        std::optional<decode::Generated> made;
        std::exception_ptr error;
        try {
            made = scheduler_->take(at->first);
        } catch (...) {
            error = std::current_exception();
        }
        if (!made && !error) {
            ++at;
            continue;
        }
        Open open = std::move(at->second);
        at = open_.erase(at);
        if (error) {
            fail(open.job, failure_of(error));
        } else {
            end(open, *made);
        }
    }
}

void Desk::end(Open& open, const decode::Generated& made) {
    const JobPtr& job = open.job;
    const double took = seconds_between(job->arrived, Clock::now());
    metrics_.found_tokens += static_cast<std::uint64_t>(made.found);
    if (job->over) return;  // it is counted already
    if (made.reason == decode::StopReason::cancelled) {
        give_up(job);  // it was late, or its client had left: both remain so
        return;
    }
    ++(cut_short(made.reason) ? metrics_.ended_length : metrics_.ended_stop);
    metrics_.whole_request.add(took);
    const double ran = made.prefill.seconds + made.decode.seconds;
    metrics_.prefill_time.add(made.prefill.seconds);
    metrics_.decode_time.add(made.decode.seconds);
    metrics_.inference_time.add(ran);
    metrics_.made_length.add(static_cast<double>(made.drawn));
    if (made.decode.tokens > 0) {
        metrics_.mean_token_time.add(made.decode.seconds / static_cast<double>(made.decode.tokens));
    }
    {
        constexpr double kWeight = 0.1;  // of the newest value
        const std::lock_guard lock(mutex_);
        seconds_a_text_ += kWeight * (ran - seconds_a_text_);
    }
    --job->left;
    delivery_.call([job, choice = open.choice, made] { job->sink->ended(choice, made); });
    if (job->left == 0) job->over = true;
}

// A request that is over has counted each of its texts once: those that ended before in end(), the
// rest here or in give_up().
void Desk::fail(const JobPtr& job, const Failure& failure) {
    if (job->over) return;
    delivery_.call([job, failure] { job->sink->failed(failure); });
    job->over = true;
    metrics_.ended_error += static_cast<std::uint64_t>(job->left);
}

void Desk::fail(Embedding& embedding, const Failure& failure) {
    delivery_.call([sink = embedding.sink, failure] { sink->failed(failure); });
}

void Desk::fail(const Unit& unit, const Failure& failure) {
    unit.embedding ? fail(*unit.embedding, failure) : fail(unit.job, failure);
}

bool Desk::give_up(const JobPtr& job) {
    if (job->over) return true;
    if (job->sink->gone()) {
        job->over = true;
        metrics_.ended_abort += static_cast<std::uint64_t>(job->left);
        return true;
    }
    if (!job->late()) return false;
    fail(job, Failure::late());
    ++metrics_.timed_out;
    return true;
}

bool Desk::give_up(Embedding& embedding) {
    if (embedding.sink->gone()) return true;
    if (Clock::now() <= embedding.deadline) return false;
    fail(embedding, Failure::late());
    ++metrics_.timed_out;
    return true;
}

void Desk::fail_all(const Failure& failure) {
    Turns<Unit> waiting;
    std::vector<Unit> dropped;
    {
        const std::lock_guard lock(mutex_);
        waiting = std::exchange(waiting_, {});
        dropped = std::exchange(dropped_, {});
        embedding_ = 0;
    }
    waiting.erase_if([&](const Unit& unit) {
        fail(unit, failure);
        return true;
    });
    for (const Unit& unit : dropped) fail(unit, failure);
    scheduler_.reset();
    for (auto& [id, open] : std::exchange(open_, {})) fail(open.job, failure);
    for (const auto& embedding : std::exchange(embeddings_, {})) fail(*embedding, failure);
    embedding_waits_ = false;
}

void Desk::show() {
    metrics_.running = scheduler_ ? static_cast<std::int64_t>(scheduler_->running()) : 0;
    metrics_.cache_free = engine_->cache().free_tokens();
    if (scheduler_) {
        const decode::Scheduler::Totals& now = scheduler_->totals();
        const decode::Scheduler::Totals before = std::exchange(shown_, now);
        metrics_.passes += static_cast<std::uint64_t>(now.passes - before.passes);
        for (const auto phase :
             {&decode::Scheduler::Totals::prefill, &decode::Scheduler::Totals::decode}) {
            const OpRecord work = (now.*phase).ledger.since((before.*phase).ledger).total();
            metrics_.bytes_read += work.bytes_read;
            metrics_.flops += work.flops;
            if (phase != &decode::Scheduler::Totals::decode) continue;
            metrics_.decode_bytes_read += work.bytes_read;
            metrics_.decode_nanoseconds += static_cast<std::uint64_t>(
                1e9 * std::max(now.decode.seconds - before.decode.seconds, 0.0));
        }
    }
    const std::lock_guard lock(mutex_);
    metrics_.waiting = static_cast<std::int64_t>(waiting_.size() + embedding_ +
                                                 (scheduler_ ? scheduler_->waiting() : 0));
}

}  // namespace mr::serve
