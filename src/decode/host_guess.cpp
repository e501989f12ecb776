#include "decode/host_guess.h"

#include "core/error.h"
#include "ops/sample/sample.h"

namespace mr::decode {

void guess_on_host(model::Engine& engine, Tensor logits, std::span<const model::Place> places,
                   std::span<ops::Guess> out, std::vector<std::byte>& scratch) {
    MR_CHECK(places.size() == out.size(), "a guess for every place");
    if (places.empty()) return;  // a pass over prompts alone has no logits
    const Tensor host = engine.to_host(logits);
    scratch.resize(ops::sample_scratch_bytes(host.dim(1)));
    ThreadPool alone(1);
    Context ctx;
    ctx.pool = &alone;
    ctx.ledger = &engine.ledger();
    ctx.scratch = scratch;
    for (std::size_t i = 0; i < places.size(); ++i) {
        const model::Place& place = places[i];
        Tensor row = host.slice_rows(static_cast<std::int64_t>(i), 1);
        row.shape = {host.dim(1)};
        out[i] = ops::guess_or_fault(ctx, row, *place.sampling, *place.how,
                                     engine.model().spec.diffusion->mask,
                                     static_cast<std::uint64_t>(place.position),
                                     static_cast<std::uint64_t>(place.step), place.truth);
    }
}

}  // namespace mr::decode
