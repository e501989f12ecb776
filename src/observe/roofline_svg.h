// The roofline as a picture: FLOP/s over FLOPs a byte, both logarithmic.
#pragma once

#include <string>
#include <string_view>

#include "observe/roofline.h"

namespace mr::observe {

// An <svg> for a page: the memory roof, the matrix roof where it was measured, a dot a stage.
std::string roofline_svg(const Roofline& roofline);

// The colour of a stage, 0 to 359, the same wherever it is drawn.
int stage_hue(std::string_view name);

}  // namespace mr::observe
