// A sequence that is closed when a measurement ends, also by an exception.
#pragma once

#include "model/kv_cache.h"

namespace mr::decode {

class OpenSequence {
  public:
    explicit OpenSequence(model::KvCache& cache) : cache_(cache), id_(cache.open()) {}
    ~OpenSequence() { cache_.close(id_); }
    OpenSequence(const OpenSequence&) = delete;
    OpenSequence& operator=(const OpenSequence&) = delete;
    model::SeqId id() const { return id_; }

  private:
    model::KvCache& cache_;
    model::SeqId id_;
};

}  // namespace mr::decode
