// The texts of values, by type.
#include <fmt/format.h>

#include <algorithm>

#include "core/printable.h"
#include "text/grammar/chars.h"
#include "text/grammar/schema.h"
#include "text/grammar/schema_compiler.h"
#include "text/grammar/string_formats.h"

namespace mr::text::grammar {

StateId SchemaCompiler::value(const Facts& facts) {
    constexpr StateId next = Network::kEnd;
    if (facts.values) return literal_values(*facts.values);
    std::vector<StateId> starts;
    const auto fits = [&](std::uint32_t types) { return (facts.types & types) != 0; };
    if (fits(kObject)) starts.push_back(object(facts.object));
    if (fits(kArray)) starts.push_back(array(facts.array));
    if (fits(kString)) starts.push_back(string(facts));
    if (fits(kInteger | kFraction)) {
        NumberBounds bounds = facts.numbers;
        bounds.fractions = fits(kFraction);
        const auto text = [](const std::optional<NumberBound>& bound) {
            if (!bound) return std::string("none");
            const auto& [negative, digits, point] = bound->value;
            return fmt::format("{} {} {} {}", negative, digits, point, bound->included);
        };
        const auto [made, fresh] = scalars_.try_emplace(
            fmt::format("number {} {} {}", bounds.fractions, text(bounds.low), text(bounds.high)));
        if (fresh) made->second = number(network_, bounds, Network::kEnd);
        starts.push_back(made->second);
    }
    Network::Literals words;
    if (fits(kBoolean)) words = {{"true", next}, {"false", next}};
    if (fits(kNull)) words.emplace_back("null", next);
    if (!words.empty()) starts.push_back(network_.literals(std::move(words)));
    return network_.split(starts);
}

StateId SchemaCompiler::literal_values(const std::vector<formats::JsonValue>& values) {
    Network::Literals texts;
    for (const formats::JsonValue value : values) {
        texts.emplace_back(value.dump(), Network::kEnd);
        nodes_.spend(1 + texts.back().first.size() / 16);
    }
    std::sort(texts.begin(), texts.end());
    texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
    return network_.literals(std::move(texts));
}

StateId SchemaCompiler::string(const Facts& facts) {
    if (facts.min_length > facts.max_length) return kNoState;
    if (!facts.pattern && !facts.format) {
        return network_.string(facts.min_length, facts.max_length, Network::kEnd);
    }
    if (facts.pattern && facts.format) {
        throw nodes_.error_at(*facts.format, "format", "is not supported beside pattern");
    }
    const NodeId node = facts.pattern ? *facts.pattern : *facts.format;
    const char* keyword = facts.pattern ? "pattern" : "format";
    const std::string_view text = nodes_.value(node)[keyword].text();
    const std::string_view pattern = facts.pattern ? text : pattern_of_format(text);
    if (facts.format && pattern.empty()) {
        throw nodes_.error_at(node, keyword,
                              fmt::format("'{}' is not supported", printable(text, 100)),
                              "leave it out, or use one of " + supported_formats());
    }
    const auto [made, fresh] = scalars_.try_emplace(
        fmt::format("string {} {} {}", facts.min_length, facts.max_length, pattern));
    if (!fresh) return made->second;
    try {
        made->second = quoted(
            network_, automaton_of_pattern(pattern, facts.min_length, facts.max_length, budget_),
            Network::kEnd);
    } catch (const BadPattern& bad) {
        throw nodes_.error_at(node, keyword, bad.problem);
    }
    return made->second;
}

// Properties come in schema order. At `choose` a name must follow, of property i or a later one; at
// `after` a property has just been written and property i is the next candidate.
StateId SchemaCompiler::object(const ObjectFacts& facts) {
    const StateId close = network_.byte('}', Network::kEnd);
    const auto& properties = facts.properties;
    StateId choose = kNoState, after = close;
    bool may_close = true;
    std::size_t optional = 0;
    if (facts.more) {
        // Other properties: in any order, with none of the listed names.
        const RuleId another = network_.add_rule();
        network_.define(another, network_.byte(',', network_.blank(others(facts, Network::kEnd))));
        after = network_.repeat(another, 0, kUnbounded, close);
        choose = others(facts, after);
    }
    for (std::size_t i = properties.size(); i-- > 0;) {
        const auto& property = properties[i];
        optional = property.required ? 0 : optional + 1;
        if (optional > kMostOptional) {
            throw nodes_.error(now_,
                               fmt::format("has more than {} properties in a row that are not "
                                           "required",
                                           kMostOptional),
                               "name some of them in 'required', or move them into objects");
        }
        const StateId entry =
            network_.literal(formats::json_quoted(property.name) + ":",
                             network_.blank(network_.call(rule_of(property.value), after)));
        choose = property.required ? entry : network_.split(entry, choose);
        may_close = may_close && !property.required;
        after = network_.split(network_.byte(',', network_.blank(choose)),
                               may_close ? close : kNoState);
    }
    return network_.byte('{', network_.split(choose, may_close ? close : kNoState));
}

StateId SchemaCompiler::others(const ObjectFacts& facts, StateId next) {
    const StateId value =
        network_.byte(':', network_.blank(network_.call(rule_of(facts.others), next)));
    if (facts.properties.empty()) return network_.string(0, kUnbounded, value);
    std::vector<std::string_view> names;
    for (const auto& property : facts.properties) names.push_back(property.name);
    return quoted(network_, all_but(names), value);
}

StateId SchemaCompiler::array(const ArrayFacts& facts) {
    const std::vector<NodeSet>& first = facts.first;
    const std::uint32_t least = facts.least, most = facts.most;
    if (least > most) return kNoState;
    const StateId close = network_.byte(']', Network::kEnd);
    if (most == 0) return network_.byte('[', close);
    const auto item = [&](std::size_t place, StateId then) {
        return network_.call(rule_of(place < first.size() ? first[place] : facts.items), then);
    };
    // The first positions one by one, then a rule for all further ones.
    const auto places = static_cast<std::uint32_t>(std::clamp<std::size_t>(first.size(), 1, most));
    StateId after = close;
    if (places < most) {
        const RuleId another = network_.add_rule();
        network_.define(another, network_.byte(',', network_.blank(item(places, Network::kEnd))));
        after = network_.repeat(another, least > places ? least - places : 0,
                                most == kUnbounded ? kUnbounded : most - places, close);
    }
    for (std::uint32_t place = places - 1; place > 0; --place) {
        const StateId more = network_.byte(',', network_.blank(item(place, after)));
        after = network_.split(more, place >= least ? close : kNoState);
    }
    return network_.byte('[', network_.split(item(0, after), least == 0 ? close : kNoState));
}

}  // namespace mr::text::grammar
