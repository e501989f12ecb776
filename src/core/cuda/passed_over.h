// The GPU that is there and cannot be used.
#pragma once

#include <string>

namespace mr::cuda {

// Its name, why it is passed over, and what to do, where the system has a GPU that device() does
// not give: this build has no code for it, say. Empty where there is none, or it is used.
std::string passed_over();

}  // namespace mr::cuda
