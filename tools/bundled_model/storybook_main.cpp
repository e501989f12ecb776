// The storybook as a program of its own, for make.sh: it needs nothing but a C++ compiler.
//   storybook entropy                 exact entropy of a story, in nats
//   storybook write SEED FIRST COUNT  stories [FIRST, FIRST + COUNT) to standard output
//   storybook nats  SEED FIRST COUNT  -ln P of each of them, one a line
//   storybook check                   reads stories from standard input: how many of them could the
//                                     grammar have written, word for word?
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>

#include "train/storybook.h"

namespace {

using mr::train::Storybook;

int check() {
    const std::string all{std::istreambuf_iterator<char>(std::cin), {}};
    const std::string mark = "\n" + std::string(mr::train::kStorySeparator) + "\n";
    size_t stories = 0, written = 0;
    for (size_t at = 0, end; (end = all.find(mark, at)) != std::string::npos;
         at = end + mark.size()) {
        ++stories;
        const std::string_view text(all.data() + at, end - at);
        written += Storybook::grammar().read(text).derivations > 0;
    }
    std::printf("{\"stories\": %zu, \"of_the_grammar\": %zu}\n", stories, written);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string_view command = argc > 1 ? argv[1] : "";
    if (command == "entropy" && argc == 2) {
        std::printf("%.6f\n", Storybook::entropy_nats());
        return 0;
    }
    if (command == "check" && argc == 2) return check();
    if ((command != "write" && command != "nats") || argc != 5) {
        std::fprintf(stderr, "usage: storybook entropy | check | write|nats SEED FIRST COUNT\n");
        return 2;
    }
    const uint64_t seed = std::strtoull(argv[2], nullptr, 10);
    const uint64_t first = std::strtoull(argv[3], nullptr, 10);
    const uint64_t count = std::strtoull(argv[4], nullptr, 10);
    if (command == "write") {
        mr::train::write_storybook(std::cout, count, seed, {}, first);
    } else {
        const Storybook book(seed);
        for (uint64_t i = 0; i < count; ++i) std::printf("%.9f\n", book.story(first + i).nats);
    }
    std::cout.flush();
    return std::cout && std::fflush(stdout) == 0 ? 0 : 1;
}
