#include "model/io/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>  // for writing

#include "core/error.h"
#include "core/mapped_file.h"
#include "core/read_double.h"
#include "formats/bytes.h"

namespace mr::model {
namespace {

namespace fs = std::filesystem;
using formats::JsonValue;

constexpr const char* kEnds = "millrace.generation.ends";  // our GGUF key

void add_end(Generation& to, double id, int vocab) {
    if (!(id >= 0 && id < vocab)) return;
    const auto token = static_cast<std::int32_t>(id);
    if (!to.ends_at(token)) to.ends.push_back(token);
}

[[noreturn]] void fail(const std::string& file, std::string field, std::string value,
                       std::string problem) {
    throw Error::input({.file = file,
                        .field = std::move(field),
                        .value = std::move(value),
                        .problem = std::move(problem),
                        .remedy = "correct or remove it"});
}

double in_range(const std::string& file, const char* field, double value, double least,
                double most) {
    if (!(value >= least && value <= most)) {
        fail(file, field, fmt::format("{}", value),
             fmt::format("must be between {} and {}", least, most));
    }
    return value;
}

constexpr double kMostTokens = std::numeric_limits<std::int32_t>::max();

// A setting that transformers obeys and this engine does not, and its neutral value.
struct NotObeyed {
    const char* key;
    double neutral;
};
constexpr NotObeyed kNotObeyed[] = {
    {"num_beams", 1},
    {"num_beam_groups", 1},
    {"typical_p", 1},
    {"no_repeat_ngram_size", 0},
    {"suppress_tokens", 0},
    {"begin_suppress_tokens", 0},
    {"bad_words_ids", 0},
    {"sequence_bias", 0},
    {"forced_eos_token_id", 0},
    {"forced_bos_token_id", 0},
    {"min_new_tokens", 0},
    {"min_length", 0},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"penalty_alpha", 0},
    {"encoder_repetition_penalty", 1},
    {"guidance_scale", 1},
    {"top_h", 0},
    {"exponential_decay_length_penalty", 0},
};

// The numbers of one object: null counts as absent.
struct Numbers {
    JsonValue object;
    const std::string& file;

    std::optional<double> number(const char* key, double least, double most) const {
        const auto value = object.find_set(key);
        if (!value) return std::nullopt;
        if (!value->is_number()) fail(file, key, {}, "must be a number");
        return in_range(file, key, value->get<double>(), least, most);
    }
    void ends(Generation& to, int vocab) const {
        constexpr const char* kKey = "eos_token_id";
        const auto value = object.find_set(kKey);
        if (!value) return;
        const auto one = [&](JsonValue id) {
            if (!id.is_number()) fail(file, kKey, {}, "must be a number or a list of numbers");
            add_end(to, id.get<double>(), vocab);
        };
        if (!value->is_array()) return one(*value);
        for (const JsonValue id : *value) one(id);
    }
};

}  // namespace

Generation huggingface_generation(const std::string& folder, JsonValue config,
                                  const std::string& config_file, int vocab,
                                  std::vector<std::string>& notes) {
    Generation out;
    Numbers{config, config_file}.ends(out, vocab);
    const std::string file = (fs::path(folder) / "generation_config.json").string();
    std::error_code code;
    if (fs::symlink_status(file, code).type() == fs::file_type::not_found) return out;
    const auto document = formats::JsonDocument::parse(read_text_file(file, 1u << 24), file);
    const JsonValue object = document.root();
    if (!object.is_object()) {
        throw Error::input({.file = file, .problem = "must hold one JSON object"});
    }
    const Numbers given{object, file};
    given.ends(out, vocab);
    out.temperature = given.number("temperature", 0, 100);
    out.top_p = given.number("top_p", 0, 1);
    out.min_p = given.number("min_p", 0, 1);
    if (const auto top_k = given.number("top_k", -kMostTokens, kMostTokens)) {
        out.top_k = static_cast<std::int32_t>(std::max(*top_k, 0.0));  // below 0: all tokens
    }
    out.repeat_penalty = given.number("repetition_penalty", 0.01, 100);
    if (out.repeat_penalty) out.repeat_window = Generation::kWholeText;
    for (const NotObeyed& known : kNotObeyed) {
        const auto value = object.find_set(known.key);
        const bool neutral =
            !value || (value->is_number() && value->get<double>() == known.neutral) ||
            (value->is_boolean() && !value->get<bool>()) || (value->is_array() && value->empty());
        if (neutral) continue;
        notes.push_back(fmt::format("generation_config.json has {}, which is ignored", known.key));
    }
    if (const auto sample = object.find_set("do_sample")) {
        if (!sample->is_boolean()) fail(file, "do_sample", {}, "must be true or false");
        if (!sample->get<bool>()) out.temperature = 0.0f;
    }
    return out;
}

Generation gguf_generation(const formats::GgufFile& file, int vocab) {
    Generation out;
    if (const auto id = file.get_uint("tokenizer.ggml.eom_token_id")) {
        add_end(out, static_cast<double>(*id), vocab);
    }
    for (const std::int64_t id : file.get_ints(kEnds).value_or(std::vector<std::int64_t>())) {
        add_end(out, static_cast<double>(id), vocab);
    }
    const auto number = [&](const char* key, double least, double most) -> std::optional<double> {
        const auto value = file.get_float(key);
        if (!value) return std::nullopt;
        return in_range(file.path(), key, *value, least, most);
    };
    out.temperature = number("general.sampling.temp", 0, 100);
    out.top_p = number("general.sampling.top_p", 0, 1);
    out.min_p = number("general.sampling.min_p", 0, 1);
    out.repeat_penalty = number("general.sampling.penalty_repeat", 0.01, 100);
    if (const auto top_k = file.get_int("general.sampling.top_k")) {
        out.top_k = static_cast<std::int32_t>(in_range(
            file.path(), "general.sampling.top_k", static_cast<double>(*top_k), 0, kMostTokens));
    }
    if (const auto last = file.get_int("general.sampling.penalty_last_n")) {  // -1: all
        const double window = in_range(file.path(), "general.sampling.penalty_last_n",
                                       static_cast<double>(*last), -1, kMostTokens);
        out.repeat_window = window < 0 ? Generation::kWholeText : static_cast<int>(window);
    }
    return out;
}

void write_generation(formats::GgufWriter& writer, const Generation& generation) {
    const auto set = [&](const char* key, std::optional<float> value) {
        if (value) writer.set_f32(key, *value);
    };
    set("general.sampling.temp", generation.temperature);
    set("general.sampling.top_p", generation.top_p);
    set("general.sampling.min_p", generation.min_p);
    set("general.sampling.penalty_repeat", generation.repeat_penalty);
    if (generation.top_k) writer.set_i32("general.sampling.top_k", *generation.top_k);
    if (generation.repeat_window) {
        const int window = *generation.repeat_window;
        writer.set_i32("general.sampling.penalty_last_n",
                       window == Generation::kWholeText ? -1 : window);
    }
    if (!generation.ends.empty()) writer.set_ints(kEnds, generation.ends);
}

std::string generation_config(const Generation& generation, std::span<const std::int32_t> more) {
    nlohmann::ordered_json out;
    std::vector<std::int32_t> ends(more.begin(), more.end());
    for (const std::int32_t id : generation.ends) {
        if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
    }
    if (!ends.empty()) out["eos_token_id"] = ends;
    const bool greedy = generation.temperature == 0.0f;
    if (generation.says_sampling()) out["do_sample"] = !greedy;
    const auto set = [&](const char* key, std::optional<float> value) {
        if (value) out[key] = shortest_double(*value);
    };
    if (!greedy) set("temperature", generation.temperature);
    set("top_p", generation.top_p);
    set("min_p", generation.min_p);
    set("repetition_penalty", generation.repeat_penalty);
    if (generation.top_k) out["top_k"] = *generation.top_k;
    return out.dump(2) + "\n";
}

}  // namespace mr::model
