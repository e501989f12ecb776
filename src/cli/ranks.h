// Commands that run as one of several ranks.
#pragma once

#include <functional>

#include "core/comm/comm.h"

namespace mr::cli {

// Joins the other ranks of this launch and returns the result of body(comm). If it throws, one line
// reports the error and the rank, and all ranks are ended: others would wait for this one.
int as_rank(double timeout, const std::function<int(comm::Comm&)>& body);

}  // namespace mr::cli
