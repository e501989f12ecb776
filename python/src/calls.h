// Runs `millrace train` and `millrace data` in this process.
#pragma once

#include <nanobind/nanobind.h>

namespace mr::python {

void add_calls(nanobind::module_& m);

}  // namespace mr::python
