// MR_KERNEL(...) declares a kernel of an operation in the namespace of every instruction path,
// mr::ops::<path>; MR_DISPATCH(rms_row)(out, x, n) calls the one of the active path.
#pragma once

#include "core/isa_dispatch.h"

#define MR_DISPATCH(name) MR_DISPATCH_IN(::mr::ops, name)
