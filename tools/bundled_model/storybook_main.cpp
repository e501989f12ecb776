// Writes storybook stories [FIRST, FIRST + COUNT) to standard output, or prints the exact entropy
// of a story in nats. `make.sh` builds this alone, where the whole project is not built.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "train/storybook.h"

int main(int argc, char** argv) {
    if (argc == 2 && std::strcmp(argv[1], "entropy") == 0) {
        std::printf("%.6f\n", mr::train::Storybook::entropy_nats());
        return 0;
    }
    if (argc != 4) {
        std::fprintf(stderr, "usage: storybook entropy | storybook SEED FIRST COUNT > FILE\n");
        return 2;
    }
    const uint64_t seed = std::strtoull(argv[1], nullptr, 10);
    const uint64_t first = std::strtoull(argv[2], nullptr, 10);
    const uint64_t count = std::strtoull(argv[3], nullptr, 10);
    const auto stats = mr::train::write_storybook(std::cout, count, seed, {}, first);
    std::cout.flush();
    std::fprintf(stderr, "%llu stories, %llu bytes, %.4f nats exact, %.4f mean\n",
                 static_cast<unsigned long long>(stats.stories),
                 static_cast<unsigned long long>(stats.bytes), stats.entropy_nats, stats.mean_nats);
    return std::cout ? 0 : 1;
}
