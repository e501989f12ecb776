// Autoregressive generation of one text at a time, streamed as it is made. History that is still in
// the cache from earlier calls is not computed again.
#pragma once

#include <cstdint>
#include <span>

#include "decode/generate.h"
#include "model/engine.h"

namespace mr::decode {

class Session {
  public:
    using OnText = decode::OnText;

    explicit Session(model::Engine& engine) : engine_(engine) {}

    // Continues `prompt`, which is the whole history. Throws Error (input) where the prompt is
    // empty or does not fit into the context.
    Generated generate(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                       const OnText& on_text = {});

  private:
    model::Engine& engine_;
};

}  // namespace mr::decode
