#include "core/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <utility>

namespace mr {

void MemoryPlan::add(std::string name, std::uint64_t bytes, bool mapped) {
    items_.push_back({std::move(name), bytes, mapped});
}

std::uint64_t MemoryPlan::total() const {
    std::uint64_t sum = 0;
    for (const Item& item : items_) sum += item.bytes;
    return sum;
}

void MemoryPlan::require(std::uint64_t available, const std::string& remedy) const {
    if (total() <= available) return;
    std::string parts;
    for (const Item& item : items_) {
        parts +=
            fmt::format("{}{} {}", parts.empty() ? "" : "; ", item.name, format_bytes(item.bytes));
    }
    throw Error::device({.field = "memory",
                         .value = format_bytes(total()),
                         .problem = fmt::format("this run needs more than the available {} ({})",
                                                format_bytes(available), parts),
                         .remedy = remedy});
}

std::string format_bytes(std::uint64_t bytes) {
    static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = static_cast<double>(bytes);
    int unit = 0;
    while (value >= 1024 && unit < 4) {
        value /= 1024;
        ++unit;
    }
    return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

Arena::Arena(std::string purpose, std::size_t bytes)
    : purpose_(std::move(purpose)), size_(padded(bytes)) {
    if (size_ == 0) return;
    void* address = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
        throw Error::device(
            {.field = purpose_,
             .value = format_bytes(size_),
             .problem = "not enough memory",
             .remedy =
                 "use a shorter context, a smaller cache or batch, or a smaller weight type"});
    }
    ::madvise(address, size_, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(address);
}

Arena::~Arena() {
    if (data_) ::munmap(data_, size_);
}

Arena::Arena(Arena&& other) noexcept
    : purpose_(std::move(other.purpose_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      used_(std::exchange(other.used_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
    std::swap(purpose_, other.purpose_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(used_, other.used_);
    return *this;
}

std::size_t Arena::tensor_bytes(DType dtype, const Shape& shape) {
    return padded(dtype_bytes(dtype, static_cast<std::size_t>(shape.count())));
}

void* Arena::alloc(std::size_t bytes) {
    const std::size_t need = padded(bytes);
    MR_CHECK(need <= size_ - used_, "an arena is planned for everything taken from it");
    void* out = data_ + used_;
    used_ += need;
    return out;
}

Tensor Arena::tensor(DType dtype, Shape shape) {
    return {alloc(dtype_bytes(dtype, static_cast<std::size_t>(shape.count()))), dtype, shape};
}

}  // namespace mr
