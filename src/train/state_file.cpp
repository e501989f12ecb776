#include "train/state_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "core/mapped_file.h"
#include "train/shards.h"

namespace mr::train {
namespace {

using formats::JsonDocument;
using formats::JsonValue;
using nlohmann::ordered_json;

constexpr int kStateVersion = 1;

// Hash of state.json's content, regardless of its formatting, without the hash itself.
std::uint64_t content_hash(JsonValue state) {
    std::string text = "{";
    for (const auto& [key, value] : state.items()) {
        if (key == "hash") continue;
        if (text.size() > 1) text += ',';
        text += formats::json_quoted(key) + ":" + value.dump();
    }
    return text_hash(text + "}");
}
std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace

std::uint64_t text_hash(std::string_view text) { return fnv1a(std::as_bytes(std::span(text))); }

std::string state_text(const TrainState& state, const StateHashes& hashes) {
    ordered_json out;
    out["version"] = kStateVersion;
    out["hash"] = "";
    out["step"] = state.step;
    out["options"] = options_json(state.options);
    out["data_hash"] = hash_text(state.data_hash);
    out["machine"] = ordered_json::object();
    for (const auto& [name, value] : state.machine) out["machine"][name] = value;
    out["config_hash"] = hash_text(hashes.config);
    out["tokenizer_hash"] = hash_text(hashes.tokenizer);
    out["params_hash"] = hash_text(hashes.params);
    out["m_hash"] = hash_text(hashes.m);
    out["v_hash"] = hash_text(hashes.v);
    out["skipped"] = state.skipped;
    out["skipped_in_row"] = state.skipped_in_row;
    out["seconds"] = state.seconds;
    out["val_loss"] = nullptr;
    if (state.val_loss) out["val_loss"] = *state.val_loss;
    out["val_step"] = state.val_step;
    out["samples"] = ordered_json::array();
    for (const TrainState::Sample& sample : state.samples) {
        out["samples"].push_back({{"step", sample.step}, {"text", sample.text}});
    }
    // A sample may have any bytes; JSON needs UTF-8.
    const auto text = [&] {
        return out.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
    };
    out["hash"] = hash_text(content_hash(JsonDocument::parse(text(), "state.json").root()));
    return text();
}

StateFile::StateFile(std::string path) : path_(std::move(path)) {
    json_ = JsonDocument::parse(read_text_file(path_, std::size_t{1} << 26), path_);
    if (!json_.root().is_object()) throw bad("", "must hold one JSON object");
    if (const std::int64_t version = integer("version"); version != kStateVersion) {
        throw OtherVersion(
            Error::input({.file = path_,
                          .field = "version",
                          .value = fmt::format("{}", version),
                          .problem = fmt::format("is not supported; this program reads version {}",
                                                 kStateVersion),
                          .remedy = "use the program that wrote it"}));
    }
}

JsonValue StateFile::field(const char* key) const {
    const auto at = json_.root().find(key);
    if (!at) throw bad(key, "is missing");
    return *at;
}

std::int64_t StateFile::integer(const char* key) const {
    const JsonValue value = field(key);
    if (!value.is_integer_in(0, std::int64_t{1} << 53)) throw bad(key, "must be a whole number");
    return value.get<std::int64_t>();
}

double StateFile::number(const char* key) const {
    const JsonValue value = field(key);
    if (!value.is_number()) throw bad(key, "must be a number");
    return value.get<double>();
}

std::uint64_t StateFile::hash(const char* key) const {
    const JsonValue value = field(key);
    const std::string text = value.is_string() ? value.get<std::string>() : "";
    if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != text.npos) {
        throw bad(key, "must be 16 hexadecimal digits");
    }
    return std::stoull(text, nullptr, 16);
}

void StateFile::check(const char* key, std::uint64_t found, const std::string& of) const {
    if (!has(key) || hash(key) == found) return;
    throw Error::input({.file = of, .field = key, .problem = "does not match what was written"});
}

void StateFile::check_content() const { check("hash", content_hash(json_.root()), path_); }

Error StateFile::bad(const char* key, const char* problem) const {
    return Error::input({.file = path_, .field = key, .problem = problem});
}

}  // namespace mr::train
