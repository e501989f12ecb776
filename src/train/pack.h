// Packs texts into a data folder (shards.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/progress.h"
#include "core/thread_pool.h"
#include "text/documents.h"
#include "train/shards.h"

namespace mr::train {

struct PackOptions {
    std::vector<std::string> data;        // files, folders, globs
    std::vector<std::string> val_data;    // for the validation split; empty: held out from `data`
    std::string tokenizer;                // a tokenizer.json or its folder, a GGUF
    std::string out;                      // must not exist, or be empty
    std::string split{text::kEndOfText};  // separator of documents; empty: each file is one
    std::string end_token{};              // empty: the tokenizer's own end of text
    double val = 0.01;                    // share of the documents held out
    std::optional<std::uint64_t> val_docs{};  // instead of `val`: number of documents
    std::uint64_t seed = 0;                   // for the choice of validation documents
    std::uint64_t shard_tokens = 100'000'000;
    bool parse_special = false;  // special tokens written out in the texts become their ids
    bool force = false;          // replace an existing data folder
};

struct PackResult {
    SplitStats train, val;
    std::size_t train_shards = 0, val_shards = 0;
    std::uint32_t vocab = 0;
    std::uint32_t bytes_per_token = 2;
    std::int32_t end_token = 0;
    std::size_t files = 0;
};

// The folder appears whole or not at all. Which documents are held out depends only on their number
// and the seed. Throws Error (input or usage).
PackResult pack(const PackOptions& options, ThreadPool& pool, const Progress& progress = {});

}  // namespace mr::train
