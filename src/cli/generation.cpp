#include "cli/generation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "cli/terminal.h"

namespace mr::cli {
namespace {

// Ids that end a generation: the tokenizer's and those of the model's files.
std::vector<std::int32_t> ends_of(const model::Model& model) {
    std::vector<std::int32_t> out;
    for (std::int32_t id = 0; id < model.spec.vocab; ++id) {
        const bool known = model.tokenizer && id < model.tokenizer->vocab_size() &&
                           model.tokenizer->is_end_of_generation(id);
        if (known || model.generation.ends_at(id)) out.push_back(id);
    }
    return out;
}

}  // namespace

Json generation_json(const model::Model& model) {
    const model::Generation& g = model.generation;
    Json json = {{"ends", ends_of(model)}};
    const auto set = [&](const char* key, const auto& value) {
        if (value) json[key] = *value;
    };
    set("temperature", g.temperature);
    set("top_k", g.top_k);
    set("top_p", g.top_p);
    set("min_p", g.min_p);
    set("repeat_penalty", g.repeat_penalty);
    if (g.repeat_window) {
        json["repeat_window"] = *g.repeat_window;
        if (*g.repeat_window == model::Generation::kWholeText) json["repeat_window"] = nullptr;
    }
    return json;
}

std::string generation_text(const model::Model& model) {
    constexpr std::size_t kMostShown = 8;
    const std::vector<std::int32_t> ends = ends_of(model);
    std::string text = "ends with   ";
    for (std::size_t i = 0; i < std::min(ends.size(), kMostShown); ++i) {
        const std::string name = model.tokenizer && ends[i] < model.tokenizer->vocab_size()
                                     ? " " + one_line(model.tokenizer->display(ends[i]))
                                     : "";
        text += fmt::format("{}{}{}", i ? ", " : "", ends[i], name);
    }
    if (ends.size() > kMostShown) text += fmt::format(", {} more", ends.size() - kMostShown);
    text += ends.empty() ? "nothing: no end token is known\n" : "\n";
    const model::Generation& g = model.generation;
    if (!g.says_sampling()) return text;
    std::vector<std::string> said;
    const auto say = [&](const char* what, const auto& value) {
        if (value) said.push_back(fmt::format("{} {}", what, *value));
    };
    say("--temp", g.temperature);
    say("--top-k", g.top_k);
    say("--top-p", g.top_p);
    say("--min-p", g.min_p);
    say("--repeat-penalty", g.repeat_penalty);
    if (g.repeat_window == model::Generation::kWholeText) {
        said.push_back("over the whole text");
    } else {
        say("--repeat-window", g.repeat_window);
    }
    return text + fmt::format("sampling    {}, where not given\n", fmt::join(said, " "));
}

}  // namespace mr::cli
