// The hash of a file's content, as a hub names it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace mr::pull {

class Digest {
  public:
    static Digest sha256();
    // git's name of a file of `size` bytes.
    static Digest git_blob(std::uint64_t size);

    void add(std::string_view bytes);
    std::string hex() const;  // of what was added so far

  private:
    struct State;
    explicit Digest(const char* algorithm);
    std::shared_ptr<State> state_;
};

}  // namespace mr::pull
