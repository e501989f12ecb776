// How well a diffusion model predicts a text, in two numbers.
//
// The exact number is the likelihood of the text under the decoder: its order is replayed on the
// true text, and log p of the tokens that every pass settles is added up. This works because the
// order does not depend on what was drawn. The bound is the training objective of such models:
// blocks are masked at a rate t, and the cross-entropy of the masked tokens is divided by t. Its
// mean over t is the mean of -log p over random orders with one token per pass. It bounds the
// likelihood of such a decoder only: a decoder that settles several places in a pass, or in another
// order, is another distribution, and its exact number may lie on either side of the bound.
//
// A document begins as for any model and is padded with end tokens to the end of its block, and log
// p of all of them counts: a shortened block would reveal where the text ends.
#pragma once

#include <optional>

#include "decode/diffusion.h"
#include "decode/eval.h"

namespace mr::decode {

struct DiffusionEvalOptions {
    DiffusionOptions decoder;
    int bound = 4;  // rates of each block, evenly spread over (0, 1]; 0: no bound
};

struct DiffusionEvalResult {
    // The decoder's number. Tokens are those of the text and one end token for every document that
    // was not cut.
    EvalResult exact;
    std::int64_t passes = 0;  // passes of the decoder, over all documents
    double bound_nll = 0;     // nats per token
    // Its standard error for this text, over other draws of rates and masks. Estimated from the
    // spread over the rates of each block, as if these were independent; since they are evenly
    // spread, the true error is smaller. None with one rate.
    std::optional<double> bound_error;
};

// Documents are split as in evaluate(). Throws Error (usage) where the decoder's order depends on
// its draws.
DiffusionEvalResult evaluate_diffusion(model::Engine& engine, std::string_view text,
                                       const EvalOptions& options, const DiffusionEvalOptions& how,
                                       const Progress& progress = {});

// Nats of one text whose first `given` tokens are known: exact (replayed), and the bound (masked).
double replayed_nats(model::Engine& engine, const DiffusionOptions& decoder,
                     std::span<const std::int32_t> tokens, std::size_t given);
double masked_nats(model::Engine& engine, const DiffusionEvalOptions& how,
                   std::span<const std::int32_t> tokens, std::size_t given);
// The bound's nats with their variance. `draw`: number of the draw of rates and masks.
struct MaskedSample {
    double nats = 0, variance = 0;
};
MaskedSample masked_sample(model::Engine& engine, const DiffusionEvalOptions& how,
                           std::span<const std::int32_t> tokens, std::size_t given,
                           std::size_t draw = 0);

}  // namespace mr::decode
