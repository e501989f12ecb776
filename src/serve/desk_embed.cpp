// Embeddings: the mean or last input of the LM head over the tokens of a text. They run between the
// passes of the scheduler, a piece at a time, so that no text waits for long.
#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "model/cpu/cpu_engine.h"
#include "model/cuda/device_engine.h"
#include "serve/desk_job.h"

namespace mr::serve {
namespace {

// Normalised to length 1, as clients expect.
std::vector<float> unit_vector(std::span<const double> sum) {
    double square = 0;
    for (const double x : sum) square += x * x;
    const double scale = square > 0 ? 1 / std::sqrt(square) : 0;
    std::vector<float> out;
    out.reserve(sum.size());
    for (const double x : sum) out.push_back(static_cast<float>(x * scale));
    return out;
}

}  // namespace

// False: nothing to do, or no room for it yet.
bool Desk::embed_piece() {
    embedding_waits_ = false;
    if (embeddings_.empty()) return false;
    Embedding& e = *embeddings_.front();
    const auto leave = [&] {
        e.sequence.reset();
        embeddings_.pop_front();
        const std::lock_guard lock(mutex_);
        --embedding_;
        return true;
    };
    if (give_up(e)) return leave();
    try {
        const std::vector<std::int32_t>& ids = e.texts[e.vectors.size()];
        const auto count = static_cast<std::int64_t>(ids.size());
        if (!e.sequence) {
            engine_->require_tokens(ids);
            if (count == 0 || count > most_positions_) {
                throw Failure::bad("input", "a text is empty or longer than the context",
                                   "context_length_exceeded");
            }
            e.sequence.emplace(engine_->cache());
            if (!engine_->try_reserve(e.sequence->id(), 0, count)) {
                e.sequence.reset();
                embedding_waits_ = !open_.empty();
                if (embedding_waits_) return false;  // until a text has ended
                throw Failure::bad("input", "the cache has no room for a text this long");
            }
            e.done = 0;
            e.sum.assign(static_cast<std::size_t>(model_->spec.dim), 0.0);
        }
        const std::int64_t cut = engine_->cut();
        const auto most = std::min(engine_->options().max_batch, engine_->options().max_logits);
        std::int64_t piece = std::min<std::int64_t>(most, count - e.done);
        if (e.done + piece < count) piece = piece / cut * cut;
        MR_CHECK(piece > 0, "the engine has logits for a piece of a prompt");
        model::BatchItem item =
            model::prompt_item(e.sequence->id(),
                               std::span(ids).subspan(static_cast<std::size_t>(e.done),
                                                      static_cast<std::size_t>(piece)),
                               count, model::BatchItem::Logits::all);
        if (cut == 1) item.form = model::Form::prompt;
        const Tensor logits = engine_->submit({&item, 1});
        const Tensor hidden = engine_->options().cuda
                                  ? model::device_head_input(*engine_, logits.rows())
                                  : model::cpu_head_input(*engine_, logits.rows());
        for (std::int64_t r = 0; r < hidden.rows(); ++r) {
            if (e.last && e.done + r + 1 < count) continue;
            const float* row = hidden.f32(r);
            for (std::size_t j = 0; j < e.sum.size(); ++j) e.sum[j] += row[j];
        }
        e.done += piece;
        if (e.done < count) return true;
        e.sequence.reset();
        e.vectors.push_back(unit_vector(e.sum));
        ++metrics_.embedded_texts;
        metrics_.prompt_tokens += ids.size();
        if (e.vectors.size() < e.texts.size()) {  // requests take turns, text by text
            embeddings_.splice(embeddings_.end(), embeddings_, embeddings_.begin());
            return true;
        }
        delivery_.call([sink = e.sink, vectors = std::move(e.vectors)]() mutable {
            sink->made(std::move(vectors));
        });
    } catch (const Error& error) {
        if (error.kind() == ErrorKind::device) healthy_ = false;
        fail(e, Failure::of(error));
    } catch (...) {
        fail(e, failure_of(std::current_exception()));
    }
    return leave();
}

}  // namespace mr::serve
