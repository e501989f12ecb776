// Which plan a call of attention has, found in a fraction of the time that Python takes to ask
// three tensors for their shapes: torch tells through the C interface of DLPack, which needs no
// linking.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace mr::python {

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
