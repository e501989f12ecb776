// Filters and tests by name.
#pragma once

#include <string_view>

#include "text/jinja/context.h"

namespace mr::text::jinja {

using Filter = Value (*)(Context& context, const Value& input, const Args& args);
using Test = bool (*)(Context& context, const Value& input, const Args& args);

// Null if there is no filter of that name.
Filter find_filter(std::string_view name);
Filter find_list_filter(std::string_view name);  // those of filters_list.cpp
Test find_test(std::string_view name);

struct FilterEntry {
    std::string_view name;
    Filter call;
};

}  // namespace mr::text::jinja
