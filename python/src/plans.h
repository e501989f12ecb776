// Finds the plan of an attention call in a fraction of the time that Python needs to read
// the shapes of three tensors: through torch's C interface for DLPack, which needs no
// linking.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ops.h"

namespace mr::python {

struct Exchange;  // DLPack's table of functions

// An attention call that only makes two new tensors and launches a kernel: addresses come from
// torch through the same interface, and new tensors from a function that torch provides.
class QuickAttention {
  public:
    // `plan`: an AttentionPlan; empty(shape, strides, dtype) makes a tensor in the plan's memory,
    // if that is on the current device.
    QuickAttention(const nanobind::capsule& api, nanobind::object plan, nanobind::object empty,
                   nanobind::tuple out, nanobind::tuple lse);
    // (out, lse) for tensors of the plan's shapes. None: an unusual case, left to Python.
    nanobind::object forward(nanobind::handle q, nanobind::handle k, nanobind::handle v) const;

  private:
    const Exchange* api_ = nullptr;
    nanobind::capsule keep_;
    nanobind::object object_;
    const AttentionPlan* plan_;
    nanobind::object empty_;
    nanobind::tuple out_, lse_;  // arguments of empty()
};

class Plans {
  public:
    // `api`: the class attribute __dlpack_c_exchange_api__, a capsule; `types`: the exact classes
    // whose objects it reads.
    Plans(nanobind::capsule api, nanobind::tuple types);

    // The plan kept for such tensors and mask, or None: if there is none, or in an unusual case
    // that Python should handle.
    nanobind::object find(nanobind::handle q, nanobind::handle k, nanobind::handle v,
                          std::int64_t max_q, std::int64_t max_k, nanobind::tuple mask);
    // Keeps a plan for the last query.
    void keep(nanobind::handle q, nanobind::handle k, nanobind::handle v, std::int64_t max_q,
              std::int64_t max_k, nanobind::tuple mask, nanobind::object plan);
    std::size_t size() const { return plans_.size(); }

  private:
    using Key = std::vector<std::int64_t>;
    struct Hash {
        std::size_t operator()(const Key& key) const;
    };
    // False: an unusual case.
    bool describe(nanobind::handle q, nanobind::handle k, nanobind::handle v, std::int64_t max_q,
                  std::int64_t max_k, const nanobind::tuple& mask);
    bool add_tensor(nanobind::handle tensor);

    int (*read_)(void* object, void* dltensor) = nullptr;  // null: an unknown interface
    nanobind::capsule api_;
    nanobind::tuple types_;
    Key key_;  // of the current call; a member, to avoid an allocation
    std::unordered_map<Key, nanobind::object, Hash> plans_;
};

}  // namespace mr::python
