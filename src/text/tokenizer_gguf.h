// Writes a vocabulary into a GGUF file, for Tokenizer::from_gguf() and llama.cpp.
#pragma once

#include "formats/gguf_writer.h"
#include "text/tokenizer_data.h"

namespace mr::text {

// Sets the `tokenizer.*` keys; the writer must have none of them yet. What GGUF has no key for goes
// into keys of ours, `millrace.tokenizer.*`: options (NFC, and how some tokenizer.json files place
// spaces), flags of added tokens, and ids around a text that are not just BOS and EOS. A `bytes`
// tokenizer sets nothing.
void write_tokenizer(formats::GgufWriter& writer, const TokenizerData& data);

}  // namespace mr::text
