// How well a model predicts a text: mean negative log-likelihood and perplexity.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/progress.h"
#include "decode/generate.h"
#include "model/engine.h"

namespace mr::decode {

struct EvalOptions {
    std::string split;  // documents end here; empty: the text is one
    int limit = 0;      // at most so many documents; 0: all
    bool ends = false;  // the token that ends a document is predicted, too
};

struct EvalResult {
    std::int64_t documents = 0;
    std::int64_t tokens = 0;            // predicted ones
    std::int64_t bytes = 0;             // of text that those tokens cover
    std::int64_t cut = 0;               // documents that were longer than the context
    double nll = 0;                     // natural log, mean over tokens
    std::vector<double> document_nats;  // its sum for each document
    double perplexity() const;
    double bits_per_byte() const;
    double nats_per_document() const;
    Phase phase;
};

// Documents as the evaluation reads them: split at `split`, leading blanks and one trailing newline
// dropped, empty ones left out.
std::vector<std::string_view> split_documents(std::string_view text, const EvalOptions& options);

// Every document begins with the tokenizer's beginning-of-text token. With a split, a document
// longer than the context is cut there (and has no end to predict); without one, the text is read
// in consecutive windows of the context's length, each predicted from its own beginning.
EvalResult evaluate(model::Engine& engine, std::string_view text, const EvalOptions& options,
                    const Progress& progress = {});

// Rows of logits that evaluation wants the engine to have room for.
int eval_logit_rows(const model::ModelSpec& spec);

}  // namespace mr::decode
