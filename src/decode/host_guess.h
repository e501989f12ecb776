// Guesses of unknown tokens by one host thread, from all logits: the reference for samplers on the
// device.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "model/engine.h"

namespace mr::decode {

// out[i] is the guess for places[i], from row i of the logits f32 [rows, vocab] that
// Engine::submit() returned; they are copied to the host if they are on a device. Guesses equal
// those of submit() with places, faults (ops::GuessFault) included. `scratch` grows as needed.
void guess_on_host(model::Engine& engine, Tensor logits, std::span<const model::Place> places,
                   std::span<ops::Guess> out, std::vector<std::byte>& scratch);

}  // namespace mr::decode
