#include "plans.h"

#include <bit>
#include <utility>

namespace nb = nanobind;

namespace mr::python {
namespace {

// As defined by DLPack, version 1.
struct DLTensor {
    void* data;
    std::int32_t device_type, device_id;
    std::int32_t ndim;
    std::uint8_t code, bits;
    std::uint16_t lanes;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};

constexpr std::size_t kMostPlans = 1024;  // limits the memory

}  // namespace

// As defined by DLPack, version 1.
struct Exchange {
    std::uint32_t major, minor;
    void* previous;
    void* allocate;
    void* managed_from_object;
    void* managed_to_object;
    int (*tensor_from_object)(void* object, void* out);  // fills a DLTensor; -1: an error is set
    int (*current_stream)(std::int32_t device_type, std::int32_t device, void** out);
};

QuickAttention::QuickAttention(const nb::capsule& api, nb::object plan, nb::object empty,
                               nb::tuple out, nb::tuple lse)
    : keep_(api),
      object_(std::move(plan)),
      plan_(&nb::cast<const AttentionPlan&>(object_)),
      empty_(std::move(empty)),
      out_(std::move(out)),
      lse_(std::move(lse)) {
    const auto* const table = static_cast<const Exchange*>(api.data("dlpack_exchange_api"));
    if (table->major == 1 && table->minor >= 3 && table->tensor_from_object &&
        table->current_stream) {
        api_ = table;
    }
}

nb::object QuickAttention::forward(nb::handle q, nb::handle k, nb::handle v) const {
    constexpr std::int32_t kCpu = 1;  // kDLCPU
    if (!api_) return nb::none();
    DLTensor at[5];
    Address address[5];
    const auto look = [&](int i, nb::handle tensor) {
        if (api_->tensor_from_object(tensor.ptr(), &at[i]) != 0) {
            PyErr_Clear();
            return false;
        }
        address[i] = reinterpret_cast<Address>(at[i].data) + at[i].byte_offset;
        return true;
    };
    if (!look(0, q) || !look(1, k) || !look(2, v)) return nb::none();
    const bool cpu = at[0].device_type == kCpu;
    if (!cpu && (address[0] | address[1] | address[2]) % 16 != 0) return nb::none();
    nb::object out = empty_(out_[0], out_[1], out_[2]);
    nb::object lse = empty_(lse_[0], lse_[1], lse_[2]);
    void* stream = nullptr;
    // If another device is the current one, the new tensors lie there.
    if (!look(3, out) || !look(4, lse) || at[3].device_id != at[0].device_id) return nb::none();
    if (!cpu && api_->current_stream(at[0].device_type, at[0].device_id, &stream) != 0) {
        PyErr_Clear();
        return nb::none();
    }
    {
        const nb::gil_scoped_release unlocked;
        plan_->forward(address[0], address[1], address[2], address[3], address[4], {},
                       reinterpret_cast<Address>(stream));
    }
    return nb::make_tuple(std::move(out), std::move(lse));
}

std::size_t Plans::Hash::operator()(const Key& key) const {
    std::uint64_t h = key.size();
    for (const std::int64_t x : key) {
        h = (h ^ static_cast<std::uint64_t>(x)) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

Plans::Plans(nb::capsule api, nb::tuple types) : api_(std::move(api)), types_(std::move(types)) {
    const auto* const table = static_cast<const Exchange*>(api_.data("dlpack_exchange_api"));
    // Before 1.3 there was no such table, or a different one.
    if (table->major == 1 && table->minor >= 3) read_ = table->tensor_from_object;
}

bool Plans::add_tensor(nb::handle tensor) {
    const nb::handle type = tensor.type();
    bool known = false;
    for (const nb::handle one : types_) known = known || type.is(one);
    DLTensor t{};
    if (!known) return false;
    if (read_(tensor.ptr(), &t) != 0) {
        PyErr_Clear();
        return false;
    }
    if (t.ndim > 4 || (!t.strides && t.ndim > 0) || t.byte_offset != 0) return false;
    key_.push_back(t.device_type | std::int64_t{t.device_id} << 16 | std::int64_t{t.ndim} << 40);
    key_.push_back(t.code | std::int64_t{t.bits} << 8 | std::int64_t{t.lanes} << 16);
    key_.insert(key_.end(), t.shape, t.shape + t.ndim);
    key_.insert(key_.end(), t.strides, t.strides + t.ndim);
    return true;
}

bool Plans::describe(nb::handle q, nb::handle k, nb::handle v, std::int64_t max_q,
                     std::int64_t max_k, const nb::tuple& mask) {
    key_.clear();
    if (!read_ || !add_tensor(q) || !add_tensor(k) || !add_tensor(v)) return false;
    key_.push_back(max_q);
    key_.push_back(max_k);
    for (const nb::handle x : mask) {
        PyObject* const p = x.ptr();
        // Stores a kind with each value: True must differ from 1, and None from everything.
        if (p == Py_None) {
            key_.insert(key_.end(), {0, 0});
        } else if (PyBool_Check(p)) {
            key_.insert(key_.end(), {1, p == Py_True});
        } else if (PyLong_CheckExact(p)) {
            const long long number = PyLong_AsLongLong(p);
            if (number == -1 && PyErr_Occurred()) {
                PyErr_Clear();
                return false;
            }
            key_.insert(key_.end(), {2, number});
        } else if (PyFloat_CheckExact(p)) {
            key_.insert(key_.end(), {3, std::bit_cast<std::int64_t>(PyFloat_AsDouble(p))});
        } else {
            return false;
        }
    }
    return true;
}

nb::object Plans::find(nb::handle q, nb::handle k, nb::handle v, std::int64_t max_q,
                       std::int64_t max_k, nb::tuple mask) {
    if (!describe(q, k, v, max_q, max_k, mask)) return nb::none();
    const auto found = plans_.find(key_);
    return found == plans_.end() ? nb::none() : found->second;
}

void Plans::keep(nb::handle q, nb::handle k, nb::handle v, std::int64_t max_q, std::int64_t max_k,
                 nb::tuple mask, nb::object plan) {
    if (!describe(q, k, v, max_q, max_k, mask)) return;
    if (plans_.size() >= kMostPlans) plans_.clear();
    plans_[key_] = std::move(plan);
}

}  // namespace mr::python
