// Every key of every configuration class that transformers has for a supported family, with other
// values than its own, beside what transformers makes of it (tests/compat/record_keys.py): this
// program obeys the key as transformers does, or refuses it by name. A key that changes nothing
// there changes nothing here.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "core/mapped_file.h"
#include "formats/json.h"
#include "model/io/known_key_lists.h"
#include "model/io/source.h"
#include "model/model_files.h"

namespace mr::model::config_keys_test {
namespace {

using nlohmann::json;

const json& recorded_keys() {
    static const json all =
        json::parse(read_text_file(MR_SOURCE_DIR "/tests/compat/keys.json", 1u << 24));
    return all;
}

// What a configuration becomes, without weights: one folder, whose config.json changes.
class ConfigFolder {
  public:
    ConfigFolder() {
        const std::string header =
            R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})" + std::string(1, ' ');
        const std::uint64_t bytes = header.size();
        std::ofstream file(folder_ / "model.safetensors", std::ios::binary);
        file.write(reinterpret_cast<const char*>(&bytes), sizeof bytes);
        file << header << std::string(4, '\0');
    }
    struct Read {
        ModelSpec spec;
        Generation generation;
        std::string error;  // "": none
    };
    Read read(const json& config) const {
        std::ofstream(folder_ / "config.json") << config.dump();
        try {
            const Source source = open_huggingface(folder_.path(), {});
            return {source.spec, source.generation, ""};
        } catch (const Error& error) {
            return {{}, {}, error.what()};
        }
    }

  private:
    TempFolder folder_;
};

// All that a pass over text depends on, layer by layer.
std::string differs(const ConfigFolder::Read& a, const ConfigFolder::Read& b) {
    const ModelSpec &s = a.spec, &t = b.spec;
    const std::pair<const char*, bool> parts[] = {
        {"family", s.family != t.family},
        {"vocab", s.vocab != t.vocab},
        {"dim", s.dim != t.dim},
        {"layers", s.layers != t.layers},
        {"heads", s.heads != t.heads},
        {"kv_heads", s.kv_heads != t.kv_heads},
        {"head_dim", s.head_dim != t.head_dim},
        {"hidden", s.hidden != t.hidden},
        {"context", s.context != t.context},
        {"residual", s.residual != t.residual},
        {"qkv_bias", s.qkv_bias != t.qkv_bias},
        {"out_bias", s.out_bias != t.out_bias},
        {"mlp_bias", s.mlp_bias != t.mlp_bias},
        {"positions", s.learned_positions != t.learned_positions},
        {"tied", s.tied_embeddings != t.tied_embeddings},
        {"layer", s.layer_specs() != t.layer_specs()},
        {"generation", !(a.generation == b.generation)},
    };
    for (const auto& [name, other] : parts) {
        if (other) return name;
    }
    return "";
}

// Attributes of transformers that are one number of the spec.
const std::map<std::string, int ModelSpec::*> kNumbers = {
    {"vocab_size", &ModelSpec::vocab},
    {"hidden_size", &ModelSpec::dim},
    {"n_embd", &ModelSpec::dim},
    {"num_hidden_layers", &ModelSpec::layers},
    {"n_layer", &ModelSpec::layers},
    {"num_attention_heads", &ModelSpec::heads},
    {"n_head", &ModelSpec::heads},
    {"num_key_value_heads", &ModelSpec::kv_heads},
    {"intermediate_size", &ModelSpec::hidden},
    {"n_inner", &ModelSpec::hidden},
    {"max_position_embeddings", &ModelSpec::context},
    {"n_positions", &ModelSpec::context},
};

// The error names the key, or a part of what it means.
bool says_key(const std::string& error, const std::string& key, const json& effect) {
    const auto named = [&](const std::string& name) {
        return error.find(name.substr(name.find('.') + 1)) != std::string::npos;
    };
    if (named(key)) return true;
    for (const auto& [attribute, value] : effect.items()) {
        if (named(attribute)) return true;
    }
    return false;
}

class Walk {
  public:
    explicit Walk(const json& family) : family_(family) {
        for (const json& base : family.at("bases")) bases_.push_back(folder_.read(base));
    }

    void one(const std::string& key, const json& row) {
        const json& base = family_.at("bases").at(row.at(0).get<std::size_t>());
        const json& value = row.at(1);
        const json effect = row.size() > 2 ? row.at(2) : json::object();
        SCOPED_TRACE(key + ": " + value.dump() + " beside " + base.dump() + ": " + effect.dump());
        if (effect.is_string()) return;  // transformers refuses it
        json config = base;
        if (key.starts_with("rope_scaling.")) {
            config["rope_scaling"][key.substr(key.find('.') + 1)] = value;
        } else {
            config[key] = value;
        }
        const ConfigFolder::Read &before = bases_.at(row.at(0).get<std::size_t>()),
                                 after = folder_.read(config);
        ASSERT_EQ(before.error, "");
        ++walked;
        if (!after.error.empty()) {
            EXPECT_TRUE(says_key(after.error, key, effect)) << after.error;
            ++refused;
            return;
        }
        if (effect.empty()) {
            EXPECT_EQ(differs(before, after), "") << "without an effect in transformers";
            return;
        }
        ++obeyed;
        EXPECT_NE(differs(before, after), "") << "neither obeyed nor refused";
        for (const auto& [attribute, number] : effect.items()) {
            if (const auto at = kNumbers.find(attribute); at != kNumbers.end()) {
                EXPECT_EQ(after.spec.*at->second, number) << attribute;
            }
        }
    }

    int walked = 0, refused = 0, obeyed = 0;

  private:
    const json& family_;
    ConfigFolder folder_;
    std::vector<ConfigFolder::Read> bases_;
};

TEST(ConfigKeys, AreObeyedAsInTransformersOrRefusedByName) {
    for (const auto& [name, family] : recorded_keys().at("families").items()) {
        SCOPED_TRACE(name);
        Walk walk(family);
        for (const auto& [key, rows] : family.at("cases").items()) {
            for (const json& row : rows) walk.one(key, row);
        }
        EXPECT_GT(walk.walked, 250);
        EXPECT_GT(walk.refused, 20);
        EXPECT_GT(walk.obeyed, 20);
    }
}

// A key that is accepted in future must be recorded, too.
TEST(ConfigKeys, OfOurOwnListsAreWalked) {
    const auto walked = recorded_keys().at("keys").get<std::set<std::string>>();
    const auto check = [&](std::string_view key) {
        if (key == "architectures" || key == "model_type" || key == "transformers_version") return;
        EXPECT_TRUE(walked.contains(std::string(key)))
            << key << ": run tests/compat/record_keys.py";
    };
    for (const std::string_view key : kConfigKeys) check(key);
    for (const std::string_view key : kHarmlessConfigKeys) check(key);
    for (const NeutralKey& key : kNeutralConfigKeys) check(key.name);
}

TEST(ConfigKeys, TheOtherFamiliesNamesWinInGpt2) {
    const json base = recorded_keys().at("families").at("gpt2").at("bases").at(0);
    const ConfigFolder folder;
    json config = base;
    for (const auto& [own, common, value] : {std::tuple("n_embd", "hidden_size", 64),
                                             {"n_layer", "num_hidden_layers", 3},
                                             {"n_head", "num_attention_heads", 8},
                                             {"n_positions", "max_position_embeddings", 77}}) {
        config.erase(own);
        config[common] = value;
    }
    ConfigFolder::Read read = folder.read(config);
    EXPECT_EQ(read.error, "");
    const auto numbers = [&] {
        const ModelSpec& s = read.spec;
        return std::vector{s.dim, s.layers, s.heads, s.head_dim, s.hidden, s.context};
    };
    EXPECT_EQ(numbers(), (std::vector{64, 3, 8, 8, 256, 77}));
    config.update(base);  // beside GPT-2's own
    read = folder.read(config);
    EXPECT_EQ(numbers(), (std::vector{64, 3, 8, 8, 256, 77}));
    config["num_attention_heads"] = 5;
    EXPECT_NE(folder.read(config).error.find("num_attention_heads"), std::string::npos);
}

}  // namespace
}  // namespace mr::model::config_keys_test
