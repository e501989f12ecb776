// Guesses of unknown tokens by one thread of the host, from all logits: what samplers on the device
// are compared with.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "model/engine.h"

namespace mr::decode {

// out[i] of places[i], by row i of the logits f32 [rows, vocab] that Engine::submit() has left;
// they are copied to the host where they are not there. They are those of submit() with places,
// faults (ops::GuessFault) included. `scratch` grows as needed.
void guess_on_host(model::Engine& engine, Tensor logits, std::span<const model::Place> places,
                   std::span<ops::Guess> out, std::vector<std::byte>& scratch);

}  // namespace mr::decode
