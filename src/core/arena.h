// Planned memory: a run's needs are added up before it starts, then allocated in one piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace mr {

// The bytes a run will hold, by purpose. Printable, and checked against the machine.
class MemoryPlan {
  public:
    struct Item {
        std::string name;
        std::uint64_t bytes = 0;
        bool mapped = false;  // stays in the file's map: counts as cache, not as allocation
    };
    void add(std::string name, std::uint64_t bytes, bool mapped = false);
    const std::vector<Item>& items() const { return items_; }
    std::uint64_t total() const;
    // Throws Error (device) with the numbers and `remedy` if the plan exceeds `available`.
    void require(std::uint64_t available, const std::string& remedy) const;

  private:
    std::vector<Item> items_;
};

// "1.07 GiB", "512 B": sizes as people read them.
std::string format_bytes(std::uint64_t bytes);

// One allocation, handed out front to back. Never grows.
class Arena {
  public:
    Arena() = default;
    // `purpose` is the arena's name in errors. Pages are untouched until used.
    Arena(std::string purpose, std::size_t bytes);
    ~Arena();
    Arena(Arena&& other) noexcept;
    Arena& operator=(Arena&& other) noexcept;
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    // Bytes that alloc() takes for a tensor of `bytes`; plans add these up.
    static std::size_t padded(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
    static std::size_t tensor_bytes(DType dtype, const Shape& shape);

    void* alloc(std::size_t bytes);
    Tensor tensor(DType dtype, Shape shape);
    void reset() { used_ = 0; }
    bool holds(const void* p) const { return p >= data_ && p < data_ + size_; }
    std::size_t used() const { return used_; }
    std::size_t size() const { return size_; }

  private:
    static constexpr std::size_t kAlign = 64;

    std::string purpose_;
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    std::size_t used_ = 0;
};

}  // namespace mr
