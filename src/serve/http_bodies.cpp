#include "serve/http_bodies.h"

#include <utility>

namespace mr::serve {

BodyBytes::Share::Share(Share&& other) noexcept
    : owner_(other.owner_),
      client_(std::move(other.client_)),
      most_(other.most_),
      bytes_(std::exchange(other.bytes_, 0)) {}

BodyBytes::Share& BodyBytes::Share::operator=(Share&& other) noexcept {
    if (this == &other) return *this;
    give_back();
    owner_ = other.owner_;
    client_ = std::move(other.client_);
    most_ = other.most_;
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
}

const char* BodyBytes::Share::grow(std::size_t bytes) {
    if (bytes <= bytes_) return nullptr;
    const std::size_t more = bytes - bytes_;
    const std::lock_guard lock(owner_->mutex_);
    if (owner_->all_ + more > owner_->most_) {
        return "the requests that are being read take too much memory";
    }
    const auto own = owner_->by_client_.find(client_);
    const std::size_t before = own == owner_->by_client_.end() ? 0 : own->second;
    if (before + more > most_) return "the requests of this client take too much memory";
    if (own == owner_->by_client_.end()) {
        owner_->by_client_.emplace(client_, more);
    } else {
        own->second += more;
    }
    owner_->all_ += more;
    bytes_ = bytes;
    return nullptr;
}

void BodyBytes::Share::give_back() {
    if (bytes_ == 0) return;
    const std::lock_guard lock(owner_->mutex_);
    const auto own = owner_->by_client_.find(client_);
    owner_->all_ -= bytes_;
    own->second -= bytes_;
    if (own->second == 0) owner_->by_client_.erase(own);
    bytes_ = 0;
}

}  // namespace mr::serve
