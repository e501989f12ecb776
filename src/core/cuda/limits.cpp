#include "core/cuda/limits.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "core/error.h"

namespace mr::cuda {

Limits lowered(Limits gpu, std::string_view wish) {
    const std::string whole(wish);
    const auto check = [&](bool good, const std::string& problem) {
        if (good) return;
        throw Error::usage({.field = "MILLRACE_GPU_LIMITS",
                            .value = whole,
                            .problem = problem,
                            .remedy = "for example: shared=65536,multiprocessors=40"});
    };
    while (!wish.empty()) {
        const std::string_view item = wish.substr(0, wish.find(','));
        wish.remove_prefix(std::min(wish.size(), item.size() + 1));
        const std::size_t equals = item.find('=');
        check(equals != item.npos, "an item is NAME=NUMBER");
        const std::string_view name = item.substr(0, equals), digits = item.substr(equals + 1);
        unsigned value = 0;
        const auto [end, error] =
            std::from_chars(digits.data(), digits.data() + digits.size(), value);
        check(error == std::errc() && end == digits.data() + digits.size() && value > 0,
              "a limit is a whole number above 0");
        if (name == "shared") {
            gpu.shared_per_block = std::min<std::size_t>(gpu.shared_per_block, value);
        } else if (name == "multiprocessors") {
            gpu.multiprocessors = static_cast<int>(
                std::min<unsigned>(static_cast<unsigned>(gpu.multiprocessors), value));
        } else {
            check(false, "the limits are shared and multiprocessors");
        }
    }
    return gpu;
}

}  // namespace mr::cuda
