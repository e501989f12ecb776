// What ranks that train together do with their gradients. All ranks call the same functions in the
// same order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mr::model {

class GradExchange {
  public:
    virtual ~GradExchange() = default;
    // elements[0 .. count), where gradients lie, are this rank's own sum, and become that of all
    // ranks: a binary tree over ranks. Returns at once; nothing touches them before finish().
    virtual void add_up(float* elements, std::int64_t count) = 0;
    // Until all of it is there. Throws what went wrong on the way.
    virtual void finish() = 0;
    // The numbers of all ranks, by rank; every rank has as many. Behind finish().
    virtual std::vector<double> gather(std::span<const double> mine) = 0;
};

}  // namespace mr::model
