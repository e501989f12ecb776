// The cost of a mask: the first of a state, one whose automaton is known, a cached one, and
// accepting a token.
//
//   bench_mask TOKENIZER.json [SCHEMA TEXT]
//
// for a few built-in schemas, or for SCHEMA after TEXT. CPU time of one thread in microseconds, the
// median of 101.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <span>
#include <vector>

#include "core/error.h"
#include "formats/json.h"
#include "text/grammar/constraint.h"
#include "text/grammar/schema.h"

namespace {

using namespace mr::text::grammar;

double microseconds(const auto& body) {
    const auto now = [] {
        timespec time{};
        ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
    };
    const double start = now();
    body();
    return now() - start;
}

double median(const auto& measure) {
    std::vector<double> times;
    for (int i = 0; i < 101; ++i) times.push_back(measure());
    std::nth_element(times.begin(), times.begin() + 50, times.end());
    return times[50];
}

struct Case {
    const char* name;
    const char* schema;
    const char* before;  // the text so far
};
constexpr const char* kPerson = R"({"type": "object", "properties": {
    "name": {"type": "string"}, "code": {"type": "string", "pattern": "^[A-Za-z ]+$"},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "short": {"type": "string", "maxLength": 10},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}}},
    "required": ["name", "code", "age", "short", "tags"], "additionalProperties": false})";
constexpr Case kCases[] = {
    {"start of an object", kPerson, ""},
    {"inside of a string", kPerson, R"({"name":"Jo)"},
    {"a pattern of letters", kPerson, R"({"name":"Jo","code":"ab)"},
    {"an integer", kPerson, R"({"name":"Jo","code":"ab","age":1)"},
    {"a string of 10", kPerson, R"({"name":"Jo","code":"ab","age":1,"short":")"},
    {"an enum", kPerson, R"({"name":"Jo","code":"ab","age":1,"short":"","tags":["red",)"},
    {"any object: a key", R"({"type": "object"})", R"({"a":[{"b)"},
    {"any object: a value", R"({"type": "object"})", R"({"a":[{"b":)"},
};

}  // namespace

int main(int argc, char** argv) try {
    if (argc != 2 && argc != 4) {
        std::fprintf(stderr, "usage: bench_mask TOKENIZER.json [SCHEMA TEXT]\n");
        return 2;
    }
    const auto tokenizer = mr::text::Tokenizer::from_json_file(argv[1]);
    std::shared_ptr<const Vocabulary> words;
    const double built = microseconds([&] { words = std::make_shared<Vocabulary>(*tokenizer); });
    std::printf(
        "%d tokens, tree of %zu nodes; %zu tokens of plain text, %zu nodes without them; "
        "made in %.0f ms\n",
        words->size(), words->all().nodes.size(),
        words->all().tokens.size() - words->other().tokens.size(), words->other().nodes.size(),
        built / 1e3);
    std::printf("%-22s %8s %8s %8s %8s %8s %8s\n", "us", "compile", "first", "known", "kept",
                "accept", "allowed");
    const Case given{"the schema given", argc == 4 ? argv[2] : "", argc == 4 ? argv[3] : ""};
    const std::span<const Case> cases = argc == 4 ? std::span(&given, 1) : std::span(kCases);
    for (const auto& [name, schema, before] : cases) {
        const auto document = mr::formats::JsonDocument::parse(schema, name);
        const auto make = [&] {
            return std::make_shared<Grammar>(network_of_schema(document.root(), name), words);
        };
        const auto at = [&](const std::shared_ptr<Grammar>& grammar) {
            Constraint constraint(grammar);
            for (const char* c = before; *c; ++c) constraint.accept(*tokenizer->find({c, 1}));
            return constraint;
        };
        const double compile = median([&] { return microseconds(make); });
        const double first = median([&] {
            Constraint constraint = at(make());
            return microseconds([&] { (void)constraint.mask(); });
        });
        const auto grammar = make();
        (void)at(grammar).mask();
        const double known = median([&] {
            grammar->forget_masks();
            Constraint constraint = at(grammar);
            return microseconds([&] { (void)constraint.mask(); });
        });
        const double kept = median([&] {
            Constraint constraint = at(grammar);
            return microseconds([&] { (void)constraint.mask(); });
        });
        Constraint constraint = at(grammar);
        std::int32_t token = -1;
        std::size_t allowed = 0;
        for (std::int32_t id = 0; id < words->size(); ++id) {
            if (!constraint.allows(id)) continue;
            ++allowed;
            if (token < 0 || words->bytes(id).size() > words->bytes(token).size()) token = id;
        }
        const double accept = median([&] {
            Constraint copy = at(grammar);
            return microseconds([&] { copy.accept(token); });
        });
        std::printf("%-22s %8.0f %8.1f %8.1f %8.2f %8.2f %8zu\n", name, compile, first, known, kept,
                    accept, allowed);
    }
} catch (const mr::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
}
