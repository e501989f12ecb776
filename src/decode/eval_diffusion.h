// How well a model that fills in tokens predicts a text, by two numbers.
//
// The exact one is the likelihood of the text under the decoder as it decodes: its order is
// replayed on the true text, and log p of what every pass settles is added up. It exists because
// confidence does not depend on what was drawn. The bound is what such models are trained by:
// blocks are masked at a rate t, and the cross-entropy of the masked tokens is divided by t. Its
// mean over t is that of -log p over random orders of one token a pass. It bounds the likelihood of
// such a decoder alone: one that settles several places of a pass at once, or in an order of its
// own, is another distribution, and its exact number may lie on either side.
//
// A document begins as it does for any model, is followed by end tokens to the end of its block,
// and log p of all of these counts: a block that was shortened would tell where the text ends.
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
    // Of the decoder. Tokens are those of the text and one end for every document that has its end.
    EvalResult exact;
    std::int64_t passes = 0;  // of the decoder, over all documents
    double bound_nll = 0;     // nats a token
    // Its standard error for this text: what other draws of rates and masks would change. From the
    // spread over the rates of each block, as if they were drawn without order; that they are
    // spread evenly makes the true one smaller. None with one rate.
    std::optional<double> bound_error;
};

// Documents as evaluate() has them. Throws Error (usage) where the decoder's order depends on its
// draws.
DiffusionEvalResult evaluate_diffusion(model::Engine& engine, std::string_view text,
                                       const EvalOptions& options, const DiffusionEvalOptions& how,
                                       const Progress& progress = {});

// Nats of one text whose first `given` tokens are known, by either number.
double replayed_nats(model::Engine& engine, const DiffusionOptions& decoder,
                     std::span<const std::int32_t> tokens, std::size_t given);
double masked_nats(model::Engine& engine, const DiffusionEvalOptions& how,
                   std::span<const std::int32_t> tokens, std::size_t given);
// The latter with the square of its standard error. `draw`: which rates and masks.
struct MaskedSample {
    double nats = 0, variance = 0;
};
MaskedSample masked_sample(model::Engine& engine, const DiffusionEvalOptions& how,
                           std::span<const std::int32_t> tokens, std::size_t given,
                           std::size_t draw = 0);

}  // namespace mr::decode
