// Device operations of the exchange besides copies.
#pragma once

#include <cstdint>
#include <span>

#include "core/cuda/device.h"
#include "lab/overlap/traffic.h"

namespace mr::overlap {

// Occupies `multiprocessors` of them, with all of their shared memory, until *stop has reached
// `number`, or for kMostOccupied. *held gets the sum of the nanoseconds of all blocks. Both are on
// the device.
inline constexpr double kMostOccupied = 1.0;  // seconds
void launch_occupy(const cuda::Stream& stream, int multiprocessors, const std::uint32_t* stop,
                   std::uint32_t number, unsigned long long* held);

// Stream memory operations: *word = value after all earlier work; later work waits until *word has
// reached the value. They occupy no multiprocessor. `word` is a device address.
void write_value(const cuda::Stream& stream, std::uint32_t* word, std::uint32_t value);
void wait_value(const cuda::Stream& stream, std::uint32_t* word, std::uint32_t value);

// Copies on the device, unordered. True: the driver was asked to use no multiprocessors; false: it
// is too old for that, and chooses.
bool copy_on_device(const cuda::Stream& stream, std::span<const Copy> copies);

}  // namespace mr::overlap
