// What ops.cpp adds to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace mr::python {
void add_ops(nanobind::module_& m);
}  // namespace mr::python
