// The part of the module defined in ops.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace mr::python {
void add_ops(nanobind::module_& m);
}  // namespace mr::python
