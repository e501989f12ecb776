// Schemas made by their grammar: none ends the compiler, and what a grammar takes is what a
// validator takes that was written apart from it.
#include "grammar_generated.h"

#include <algorithm>
#include <memory>

#include "grammar_cases.h"
#include "grammar_validator.h"
#include "sanitized.h"

namespace mr::text::grammar {
namespace {

using formats::JsonValue;

// A number of JSON with all its digits, and without an exponent.
std::string plain_number(const std::string& text) {
    const bool negative = text[0] == '-';
    std::string digits = text.substr(negative, text.find_first_of("eE") - negative);
    const std::size_t e = text.find_first_of("eE");
    int point = static_cast<int>(std::min(digits.find('.'), digits.size()));
    std::erase(digits, '.');
    if (e != std::string::npos) point += std::stoi(text.substr(e + 1));
    for (; point <= 0; ++point) digits.insert(0, 1, '0');
    while (static_cast<std::size_t>(point) > digits.size()) digits += '0';
    std::string whole = digits.substr(0, static_cast<std::size_t>(point));
    std::string behind = digits.substr(static_cast<std::size_t>(point));
    whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size() - 1));
    while (!behind.empty() && behind.back() == '0') behind.pop_back();
    std::string out = behind.empty() ? whole : whole + "." + behind;
    const bool zero = out.find_first_not_of("0.") == std::string::npos;
    return negative && !zero ? "-" + out : out;
}

// One more, or one less, in the last place; signs stay.
std::string stepped(std::string number, bool up) {
    std::size_t i = number.size();
    const std::size_t first = number[0] == '-';
    while (i-- > first) {
        if (number[i] == '.') continue;
        if (number[i] != (up ? '9' : '0')) {
            number[i] = static_cast<char>(number[i] + (up ? 1 : -1));
            break;
        }
        number[i] = up ? '0' : '9';
    }
    if (i == first - 1 || i == std::string::npos) return up ? number.insert(first, 1, '1') : "0";
    return plain_number(number);
}

class Sampler {
  public:
    Sampler(JsonValue root, MadeSchema& random) : root_(root), random_(random) {}

    // A text in the order and the spelling of grammars, which may fit or not.
    std::string value(JsonValue schema) {
        if (schema.contains("$ref")) {
            for (const auto& [coded, name] : MadeSchema::kNames) {
                if (schema["$ref"] == "#/$defs/" + std::string(coded)) {
                    return value(*root_["$defs"].find(name));
                }
            }
        }
        for (const char* word : {"anyOf", "allOf"}) {
            const JsonValue parts = schema[word];
            if (!parts.is_null()) return value(parts[random_.below(parts.size())]);
        }
        if (const auto all = schema.find("enum")) return (*all)[random_.below(all->size())].dump();
        if (const auto one = schema.find("const")) return one->dump();
        std::string type = schema["type"].is_string() ? std::string(schema["type"].text()) : "";
        if (schema["type"].is_array()) {
            type = schema["type"][random_.below(schema["type"].size())].text();
        }
        if (random_.below(12) == 0) type = "null";
        if (type == "null") return "null";
        if (type == "boolean") return random_.below(2) ? "true" : "false";
        if (type == "string") return '"' + std::string(random_.below(5), 'x') + '"';
        if (type == "array") return list(schema);
        if (type == "object") return object(schema);
        return number(schema);
    }

  private:
    std::string number(JsonValue schema) {
        std::vector<std::string> near;
        for (const char* word : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
            if (!schema.contains(word)) continue;
            const std::string bound = plain_number(schema[word].dump());
            near.push_back(bound);
            near.push_back(stepped(bound, true));
            near.push_back(stepped(bound, false));
            const bool whole = bound.find('.') == std::string::npos;
            near.push_back(bound + (whole ? ".0" : "0"));
            near.push_back(stepped(bound + (whole ? ".0" : "0"), true));
            near.push_back(stepped(bound + (whole ? ".0" : "0"), false));
            near.push_back(plain_number(bound.substr(0, bound.find('.'))));
        }
        if (near.empty() || random_.below(3) == 0) return plain_number(random_.number());
        return near[random_.below(near.size())];
    }
    std::string list(JsonValue schema) {
        std::string out = "[";
        const auto count = random_.below(4);
        for (std::uint64_t i = 0; i < count; ++i) {
            const JsonValue first = schema["prefixItems"];
            out += (i ? "," : "") + value(i < first.size() ? first[i] : schema["items"]);
        }
        return out + "]";
    }
    std::string object(JsonValue schema) {
        std::string out = "{";
        for (const auto& [name, inside] : schema["properties"].items_in_file_order()) {
            if (random_.below(4) == 0) continue;
            out += fmt::format("{}\"{}\":{}", out.size() > 1 ? "," : "", name, value(inside));
        }
        if (random_.below(12) == 0) out += out.size() > 1 ? R"(,"other":1)" : R"("other":1)";
        return out + "}";
    }

    JsonValue root_;
    MadeSchema& random_;
};

// Whether grammars spell all its numbers so, whatever their bounds: few digits, no exponent, and no
// fraction of zeros alone, which an integer does not have.
bool usual_spelling(const std::string& text) {
    std::size_t run = 0, longest = 0;
    bool zeros = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const bool digit = text[i] >= '0' && text[i] <= '9';
        run = digit ? run + 1 : 0;
        longest = std::max(longest, run);
        if (text[i] != '.') continue;
        const std::size_t end = text.find_first_not_of('0', i + 1);
        zeros = zeros || end == std::string::npos || text[end] < '0' || text[end] > '9';
    }
    return longest <= 18 && !zeros && text.find_first_of("eE") == std::string::npos;
}

// Any byte that may come, and after a while those that end a value soonest.
std::string wandered(const Network& network, MadeSchema& random) {
    const auto store = std::make_unique<Store>(network);
    Store::Id state = store->start();
    std::string text;
    const auto take = [&](char c) {
        const Store::Id next = store->next(state, static_cast<std::uint8_t>(c));
        if (next == Store::kDead) return false;
        state = next;
        text += c;
        return true;
    };
    const std::size_t free = random.below(60);
    for (std::size_t step = 0; step < 4000 && store->open(state); ++step) {
        if (store->complete(state) && (step > free || random.below(4) == 0)) return text;
        bool taken = false;
        if (step > free) {
            const bool in_string = store->next(state, "z") != Store::kDead;
            for (const char c : std::string(in_string ? "\"z" : "}]\"ntf0123456789.,:")) {
                if ((taken = take(c))) break;
            }
        }
        const std::uint64_t first = random.below(256);
        for (std::uint64_t i = 0; i < 256 && !taken; ++i) {
            taken = take(static_cast<char>((first + i) % 256));
        }
        EXPECT_TRUE(taken) << "no byte behind " << text;
        if (!taken) break;
    }
    EXPECT_TRUE(store->complete(state)) << text;
    return text;
}

TEST(GrammarGenerated, AgreesWithAValidator) {
    const std::uint64_t schemas = test::sanitized() ? 400 : 2000;
    std::size_t empty = 0, fitting = 0, failing = 0, walks = 0, multiples = 0;
    for (std::uint64_t seed = 1; seed <= schemas; ++seed) {
        MadeSchema random(seed);
        const std::string text = random.write();
        SCOPED_TRACE(fmt::format("seed {}: {}", seed, text));
        const auto schema = json(text);
        const Validator validator(schema.root(), true);
        const auto fits = [&](const std::string& value) {
            const auto parsed =
                formats::JsonDocument::parse(value, "a sample", {}, {.repeated_keys = true});
            return validator.fits(parsed.root(), schema.root());
        };
        std::optional<Network> network;
        try {
            network = network_of_schema(schema.root(), "schema");
        } catch (const Error& error) {
            const std::string what = error.what();
            if (error.info().field.ends_with(".multipleOf") &&
                what.find("not supported") != std::string::npos) {
                ++multiples;
                continue;
            }
            ASSERT_NE(what.find("no value"), std::string::npos) << what;
            ++empty;
        }
        Sampler sampler(schema.root(), random);
        for (int i = 0; i < 30; ++i) {
            const std::string value = sampler.value(schema.root());
            const bool right = fits(value);
            const bool taken = network && matches(*network, value);
            if (usual_spelling(value)) {
                ASSERT_EQ(taken, right) << value;
            } else if (taken) {
                ASSERT_TRUE(right) << value;
            }
            ++(right ? fitting : failing);
        }
        for (int i = 0; network && i < 3; ++i, ++walks) {
            const std::string value = wandered(*network, random);
            ASSERT_TRUE(matches(*network, value)) << value;
            ASSERT_TRUE(fits(value)) << value;
        }
    }
    EXPECT_GT(fitting, schemas * 3);
    EXPECT_GT(failing, schemas * 3);
    EXPECT_GT(walks, schemas);
    EXPECT_GT(multiples, schemas / 200);
    EXPECT_GT(empty, schemas / 100);
    EXPECT_LT(empty, schemas / 2);
}

}  // namespace
}  // namespace mr::text::grammar
