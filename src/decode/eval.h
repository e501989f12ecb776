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

// How the cache is kept while a text is read.
enum class ContextMode {
    full,       // documents are cut at the context
    window,     // the last sinks + window tokens; the first tokens are evicted
    streaming,  // sinks and the window (model::Stream)
    recompute,  // the last sinks + window tokens, encoded anew for every token: exact, slow
};
const char* context_mode_name(ContextMode mode);

struct EvalOptions {
    std::string split{};  // separator of documents; empty: one document
    int limit = 0;        // number of documents at most; 0: all
    bool ends = false;    // the end token of a document is predicted, too
    ContextMode mode = ContextMode::full;
    model::Stream stream{};  // for the other modes; the engine must be made for stream_of()
    // This many tokens of each document, evenly spread. recompute predicts only these; the other
    // modes also report their NLL for them (EvalResult::sample_nll). 0: all tokens, and no
    // sample_nll.
    std::int64_t sample = 0;
};
// The stream that the engine must be made for (EngineOptions::stream); none where nothing streams.
model::Stream stream_of(const EvalOptions& options);

struct EvalResult {
    std::int64_t documents = 0;
    std::int64_t tokens = 0;            // predicted ones
    std::int64_t bytes = 0;             // bytes of text that the predicted tokens cover
    std::int64_t cut = 0;               // documents that were longer than the context
    double nll = 0;                     // natural log, mean over tokens
    std::vector<double> document_nats;  // sum of the NLL of each document, in nats
    std::int64_t evicted = 0;           // tokens that the last token of a document could not see
    // For EvalOptions::sample: the same tokens in every mode that predicts them.
    std::int64_t sample_tokens = 0;
    double sample_nll = 0;
    // NLL by position in the document, over all documents: of tokens at [i * kCurveStep,
    // (i + 1) * kCurveStep).
    static constexpr std::int64_t kCurveStep = 128;
    struct Bucket {
        std::int64_t tokens = 0;
        double nats = 0;
    };
    std::vector<Bucket> curve;
    double perplexity() const;
    double bits_per_byte() const;
    double nats_per_document() const;
    double seconds_per_token() const;  // time of the whole pass over the text / predicted tokens
    Phase phase;
};

// Documents as the evaluation reads them: split at `split` (text/documents.h).
std::vector<std::string_view> split_documents(std::string_view text, const EvalOptions& options);

// Every document begins with the tokenizer's beginning-of-text token. With a split, a document
// longer than the context is cut at the context (and has no end to predict); without one, the text
// is read in consecutive windows of the context's length, each predicted from its own beginning.
// Modes other than `full` cut nothing.
EvalResult evaluate(model::Engine& engine, std::string_view text, const EvalOptions& options,
                    const Progress& progress = {});

// Rows of logits that the engine needs room for in an evaluation.
int eval_logit_rows(const model::ModelSpec& spec);

}  // namespace mr::decode
