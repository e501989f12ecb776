// Puts a vocabulary into a GGUF file, for Tokenizer::from_gguf() and for llama.cpp to read.
#pragma once

#include "formats/gguf_writer.h"
#include "text/tokenizer_data.h"

namespace mr::text {

// Sets the `tokenizer.*` keys; the writer must have none of them yet. What GGUF has no key for
// (NFC, and how some tokenizer.json files place spaces) goes into `millrace.tokenizer.options`.
// A `bytes` tokenizer has nothing to say and sets nothing.
void write_tokenizer(formats::GgufWriter& writer, const TokenizerData& data);

}  // namespace mr::text
