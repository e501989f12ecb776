// A second process as the device: products on the other side of a socket, for machines without a
// GPU. What it shows is the same: bytes that cross per token decide, not who multiplies.
#pragma once

#include <memory>

#include "lab/ladder/llama.h"

namespace mr::ladder {

enum class Residence {
    nothing,  // weights and x are sent for every product
    weights,  // weights are sent once
};
// Starts the process. Throws Error (device) if it cannot be started. Its products are those of
// HostMatmul with one thread.
std::unique_ptr<Matmul> process_matmul(Residence residence);

}  // namespace mr::ladder
