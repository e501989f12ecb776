// A small deterministic fuzzer for every compiler: replays each file of a corpus, then mutations of
// them. usage: fuzz_NAME CORPUS_FOLDER SEED COUNT, or fuzz_NAME FILE to replay one input.
// Coverage-guided fuzzing is left to libFuzzer (MILLRACE_FUZZ=ON); this one runs in every test run.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

using Input = std::string;

constexpr std::size_t kMaxBytes = 1 << 16;
constexpr double kMaxSeconds = 10;  // of processor time for one input, under sanitizers

const Input* current = nullptr;

// Saves the failing input, so that it can be replayed.
void keep_current() {
    if (!current) return;
    const char* path = "fuzz-crash.bin";
    std::ofstream(path, std::ios::binary)
        .write(current->data(), static_cast<std::streamsize>(current->size()));
    std::fprintf(stderr, "the input of %zu bytes is kept in %s\n", current->size(), path);
}

class Random {  // splitmix64
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    std::size_t below(std::size_t n) { return n ? static_cast<std::size_t>(next() % n) : 0; }

  private:
    std::uint64_t state_;
};

void overwrite(Input& input, std::size_t at, std::uint64_t value, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes && at + i < input.size(); ++i) {
        input[at + i] = static_cast<char>(value >> (8 * i));
    }
}

// Numbers that break size arithmetic, in 1, 2, 4 or 8 bytes.
void interesting_integer(Input& input, Random& random) {
    static constexpr std::uint64_t kValues[] = {0,
                                                1,
                                                2,
                                                3,
                                                4,
                                                5,
                                                7,
                                                8,
                                                12,
                                                16,
                                                31,
                                                32,
                                                33,
                                                63,
                                                64,
                                                127,
                                                128,
                                                255,
                                                256,
                                                1000,
                                                32767,
                                                32768,
                                                65535,
                                                65536,
                                                0x7fffffff,
                                                0x80000000,
                                                0xffffffff,
                                                0x100000000,
                                                0x3fffffffffffffff,
                                                0x4000000000000000,
                                                0x7fffffffffffffff,
                                                0x8000000000000000,
                                                0xfffffffffffffff0,
                                                0xffffffffffffffe0,
                                                0xffffffffffffffff};
    const std::size_t bytes = std::size_t{1} << random.below(4);
    std::size_t at = random.below(input.size());
    if (random.below(2)) at -= at % bytes;
    overwrite(input, at, kValues[random.below(std::size(kValues))], bytes);
}

// Text formats: a digit, a bracket or a quote where another byte was.
void interesting_character(Input& input, Random& random) {
    static constexpr char kCharacters[] = "0123456789{}[]\",:-.eE\\ntfu\xff\xc0\x80\x01 ";
    input[random.below(input.size())] = kCharacters[random.below(sizeof kCharacters - 1)];
}

void mutate(Input& input, const std::vector<Input>& corpus, Random& random) {
    if (input.empty()) {
        input.push_back(static_cast<char>(random.next()));
        return;
    }
    const std::size_t at = random.below(input.size());
    const std::size_t length = 1 + random.below(std::min<std::size_t>(input.size() - at, 64));
    switch (random.below(10)) {
        case 0:
        case 1:
            input[at] = static_cast<char>(input[at] ^ (1 << random.below(8)));
            break;
        case 2:
        case 3:
        case 4:
            interesting_integer(input, random);
            break;
        case 5:
            interesting_character(input, random);
            break;
        case 6:
            input.resize(at);
            break;
        case 7:
            input.erase(at, length);
            break;
        case 8:
            input.insert(random.below(input.size() + 1), input.substr(at, length));
            break;
        case 9: {  // splice
            const Input& other = corpus[random.below(corpus.size())];
            const std::size_t from = random.below(other.size());
            input = input.substr(0, at) + other.substr(from);
            break;
        }
    }
    if (input.size() > kMaxBytes) input.resize(kMaxBytes);
}

// Whether the target returned in time.
bool run(const Input& input, const std::string& what) {
    current = &input;
    // A copy of exactly this size, so that reading one byte too far is detected.
    const auto copy = std::make_unique<std::uint8_t[]>(input.size());
    std::memcpy(copy.get(), input.data(), input.size());
    const std::clock_t start = std::clock();
    try {
        LLVMFuzzerTestOneInput(copy.get(), input.size());
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s: an exception escaped: %s\n", what.c_str(), e.what());
        keep_current();
        return false;
    }
    const double took = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    if (took > kMaxSeconds) {
        std::fprintf(stderr, "%s: took %.1f s\n", what.c_str(), took);
        keep_current();
        return false;
    }
    current = nullptr;
    return true;
}

Input read_file(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace

int main(int argc, char** argv) {
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(keep_current);
    if (argc == 2) return run(read_file(argv[1]), argv[1]) ? 0 : 1;
    if (argc != 4) {
        std::fprintf(stderr, "usage: %s CORPUS_FOLDER SEED COUNT | FILE\n", argv[0]);
        return 2;
    }
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
        if (entry.is_regular_file()) paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());  // the order of a folder is not fixed
    std::vector<Input> corpus;
    for (const auto& path : paths) {
        corpus.push_back(read_file(path));
        if (!run(corpus.back(), path.string())) return 1;
    }
    if (corpus.empty()) {
        std::fprintf(stderr, "%s: no files\n", argv[1]);
        return 2;
    }
    const std::uint64_t seed = std::strtoull(argv[2], nullptr, 10);
    const std::uint64_t count = std::strtoull(argv[3], nullptr, 10);
    for (std::uint64_t i = 0; i < count; ++i) {
        Random random(seed * 0x100000001b3ull + i);  // each input stands alone: easy to replay
        Input input = corpus[random.below(corpus.size())];
        const std::size_t times = 1 + random.below(6);
        for (std::size_t k = 0; k < times; ++k) mutate(input, corpus, random);
        if (!run(input, "mutation " + std::to_string(i))) return 1;
    }
    std::printf("%zu files and %llu mutations of them\n", corpus.size(),
                static_cast<unsigned long long>(count));
    return 0;
}
