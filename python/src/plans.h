// Which plan a call of attention has, found in a fraction of the time that Python takes to ask
// three tensors for their shapes: torch tells through the C interface of DLPack, which needs no
// linking.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ops.h"

namespace mr::python {

struct Exchange;  // DLPack's table of functions

// A call of attention that is nothing but two new tensors and a kernel: torch is asked for the
// addresses through the same interface, and for the tensors by the function that it gives.
class QuickAttention {
  public:
    // `plan`: an AttentionPlan; empty(shape, strides, dtype) makes a tensor where those of the plan
    // lie, if that is on the current device.
    QuickAttention(const nanobind::capsule& api, nanobind::object plan, nanobind::object empty,
                   nanobind::tuple out, nanobind::tuple lse);
    // (out, lse) for tensors of the plan's shapes. None: something is not as usual.
    nanobind::object forward(nanobind::handle q, nanobind::handle k, nanobind::handle v) const;

  private:
    const Exchange* api_ = nullptr;
    nanobind::capsule keep_;
    nanobind::object object_;
    const AttentionPlan* plan_;
    nanobind::object empty_;
    nanobind::tuple out_, lse_;  // what empty() takes
};

class Plans {
  public:
    // `api`: what the class has as __dlpack_c_exchange_api__, a capsule; `types`: the classes whose
    // objects it reads, exactly these.
    Plans(nanobind::capsule api, nanobind::tuple types);

    // The plan that was kept for such tensors and such a mask, or None: where there is none, and
    // where something is not as usual and Python had better look itself.
    nanobind::object find(nanobind::handle q, nanobind::handle k, nanobind::handle v,
                          std::int64_t max_q, std::int64_t max_k, nanobind::tuple mask);
    // For what was asked last.
    void keep(nanobind::handle q, nanobind::handle k, nanobind::handle v, std::int64_t max_q,
              std::int64_t max_k, nanobind::tuple mask, nanobind::object plan);
    std::size_t size() const { return plans_.size(); }

  private:
    using Key = std::vector<std::int64_t>;
    struct Hash {
        std::size_t operator()(const Key& key) const;
    };
    // False: not as usual.
    bool describe(nanobind::handle q, nanobind::handle k, nanobind::handle v, std::int64_t max_q,
                  std::int64_t max_k, const nanobind::tuple& mask);
    bool add_tensor(nanobind::handle tensor);

    int (*read_)(void* object, void* dltensor) = nullptr;  // null: an interface we do not know
    nanobind::capsule api_;
    nanobind::tuple types_;
    Key key_;  // of the call; kept so that it is not allocated anew
    std::unordered_map<Key, nanobind::object, Hash> plans_;
};

}  // namespace mr::python
