// The memory of request bodies: how much all of them may take, and those of one client.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>

namespace mr::serve {

// Any thread may call any member.
class BodyBytes {
  public:
    explicit BodyBytes(std::size_t most) : most_(most) {}
    BodyBytes(const BodyBytes&) = delete;
    BodyBytes& operator=(const BodyBytes&) = delete;

    // The bytes of one body, counted until it is destroyed. Its owner outlives it.
    class Share {
      public:
        Share() = default;
        // `most`: of all bodies of the client.
        Share(BodyBytes& owner, std::string client, std::size_t most)
            : owner_(&owner), client_(std::move(client)), most_(most) {}
        Share(Share&& other) noexcept;
        Share& operator=(Share&& other) noexcept;
        ~Share() { give_back(); }

        // Counts a body that has grown to `bytes`. Returns why it may not; null: it may.
        const char* grow(std::size_t bytes);
        void give_back();

      private:
        BodyBytes* owner_ = nullptr;
        std::string client_;
        std::size_t most_ = 0, bytes_ = 0;
    };

  private:
    const std::size_t most_;
    std::mutex mutex_;
    std::size_t all_ = 0;
    std::map<std::string, std::size_t> by_client_;
};

}  // namespace mr::serve
