#include "train/checkpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "core/error.h"
#include "core/mapped_file.h"
#include "core/output_file.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "model/io/source.h"
#include "model/io/write_model.h"
#include "train/fault.h"
#include "train/output_folder.h"
#include "train/shards.h"

namespace mr::train {
namespace {

namespace fs = std::filesystem;
using formats::JsonDocument;
using formats::JsonValue;
using nlohmann::ordered_json;
using State = model::TrainEngine::State;

constexpr const char* kPartial = ".partial-";  // before the name of a checkpoint being written
constexpr const char* kOld = ".old-";          // ... being removed
constexpr const char* kDamaged = "damaged-";   // ... that cannot be read
constexpr const char* kLayout = "millrace-flat-1";
constexpr int kStateVersion = 1;
constexpr const char* kFiles[] = {"",           "config.json",           "model.safetensors",
                                  "state.json", "optimizer.safetensors", "tokenizer.json"};

void fault_point() {
    if (save_point) save_point();
}

// Of the bytes of a flat state, 8 at a time: finds what a disk has changed.
std::uint64_t state_hash(const float* values, std::int64_t count) {
    MR_CHECK(count % 2 == 0, "a flat state is padded (model::ParamLayout)");
    std::uint64_t hash = 0xCBF29CE484222325u;
    for (std::int64_t i = 0; i < count; i += 2) {
        std::uint64_t word = 0;
        std::memcpy(&word, values + i, 8);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return hash;
}

std::string name_of(const fs::path& path) { return path.filename().string(); }

void write_text(const fs::path& path, const std::string& text) {
    OutputFile file(path.string());
    file.write(text);
    file.commit();
    fault_point();
}

void write_optimizer(const fs::path& path, model::TrainEngine& engine, std::uint64_t (&hashes)[3]) {
    const std::int64_t count = engine.layout().count;
    formats::SafetensorsWriter writer(path.string());
    writer.set_metadata("layout", kLayout);
    writer.declare("m", DType::f32, {count});
    writer.declare("v", DType::f32, {count});
    for (const int i : {1, 2}) {
        const float* values = engine.host(i == 1 ? State::m : State::v);
        hashes[i] = state_hash(values, count);
        constexpr std::int64_t kPart = 1 << 18;
        for (std::int64_t at = 0; at < count; at += kPart) {
            const auto part = static_cast<std::size_t>(std::min(kPart, count - at));
            writer.write(values + at, part * sizeof(float));
            fault_point();
        }
    }
    writer.finish();
    fault_point();
}

std::uint64_t text_hash(std::string_view text) {
    return token_checksum(std::as_bytes(std::span(text)));
}
// Of what state.json says, however it is written, but for this hash.
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

std::string state_text(const TrainState& state, const std::uint64_t (&hashes)[3],
                       std::uint64_t config_hash, std::uint64_t tokenizer_hash) {
    ordered_json out;
    out["version"] = kStateVersion;
    out["hash"] = "";
    out["step"] = state.step;
    out["options"] = options_json(state.options);
    out["data_hash"] = hash_text(state.data_hash);
    out["config_hash"] = hash_text(config_hash);
    out["tokenizer_hash"] = hash_text(tokenizer_hash);  // of the file's text
    out["params_hash"] = hash_text(hashes[0]);
    out["m_hash"] = hash_text(hashes[1]);
    out["v_hash"] = hash_text(hashes[2]);
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
    // A sample may be any bytes; JSON may not.
    const auto text = [&] {
        return out.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
    };
    out["hash"] = hash_text(content_hash(JsonDocument::parse(text(), "state.json").root()));
    return text();
}

// Nothing is wrong with the checkpoint.
struct OtherVersion : Error {
    explicit OtherVersion(const Error& error) : Error(error) {}
};
struct OtherTokenizer : OtherVersion {
    using OtherVersion::OtherVersion;
};

// state.json, field by field.
class StateFile {
  public:
    explicit StateFile(std::string path) : path_(std::move(path)) {
        json_ = JsonDocument::parse(read_text_file(path_, std::size_t{1} << 26), path_);
        if (!json_.root().is_object()) throw bad("", "must hold one JSON object");
        if (const std::int64_t version = integer("version"); version != kStateVersion) {
            throw OtherVersion(
                Error::input({.file = path_,
                              .field = "version",
                              .value = fmt::format("{}", version),
                              .problem = fmt::format("is not {}, the one read here", kStateVersion),
                              .remedy = "use the program that wrote it"}));
        }
    }
    JsonValue field(const char* key) const {
        const auto at = json_.root().find(key);
        if (!at) throw bad(key, "is missing");
        return *at;
    }
    std::int64_t integer(const char* key) const {
        const JsonValue value = field(key);
        if (!value.is_integer_in(0, std::int64_t{1} << 53)) {
            throw bad(key, "must be a whole number");
        }
        return value.get<std::int64_t>();
    }
    double number(const char* key) const {
        const JsonValue value = field(key);
        if (!value.is_number()) throw bad(key, "must be a number");
        return value.get<double>();
    }
    std::uint64_t hash(const char* key) const {
        const JsonValue value = field(key);
        const std::string text = value.is_string() ? value.get<std::string>() : "";
        if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != text.npos) {
            throw bad(key, "must be 16 hexadecimal digits");
        }
        return std::stoull(text, nullptr, 16);
    }
    // That the text is the one whose hash this is; checkpoints of before there was one have none.
    void check(const char* key, std::uint64_t found, const std::string& of) const {
        if (!json_.root().contains(key) || hash(key) == found) return;
        throw Error::input(
            {.file = of, .field = key, .problem = "is not that of what was written"});
    }
    bool has(const char* key) const { return json_.root().contains(key); }
    void check_content() const { check("hash", content_hash(json_.root()), path_); }
    Error bad(const char* key, const char* problem) const {
        return Error::input({.file = path_, .field = key, .problem = problem});
    }
    const std::string& path() const { return path_; }

  private:
    std::string path_;
    JsonDocument json_;
};

}  // namespace

Checkpoints::Checkpoints(std::string run) : run_(std::move(run)) {}

std::string Checkpoints::folder(std::int64_t step) const {
    return (fs::path(run_) / model::kCheckpoints /
            fmt::format("{}{:06}", model::kCheckpointPrefix, step))
        .string();
}

void Checkpoints::prepare() {
    const fs::path all = fs::path(run_) / model::kCheckpoints;
    std::error_code code;
    fs::create_directories(all, code);
    if (code) {
        throw Error::input({.file = all.string(),
                            .problem = "cannot be made: " + code.message(),
                            .remedy = "check the disk and the folder's permissions"});
    }
    std::vector<fs::path> leftovers;
    for (const auto& entry : fs::directory_iterator(all, code)) {
        const std::string name = entry.path().filename().string();
        if (name.starts_with(kPartial) || name.starts_with(kOld)) {
            leftovers.push_back(entry.path());
        }
    }
    for (const fs::path& path : leftovers) fs::remove_all(path, code);
    sync_path(all.string());
    sync_path(run_);
}

std::vector<std::int64_t> Checkpoints::steps() const {
    std::vector<std::int64_t> out;
    for (const std::string& path : model::checkpoint_folders(run_)) {
        out.push_back(*model::checkpoint_step(name_of(path)));
    }
    return out;
}

void Checkpoints::save(model::TrainEngine& engine, const TrainState& state,
                       const text::Tokenizer& tokenizer, const std::string& tokenizer_json) {
    const fs::path target = folder(state.step);
    const fs::path all = target.parent_path();
    try {
        PartialFolder partial(all / (kPartial + target.filename().string()));
        fault_point();
        std::uint64_t hashes[3] = {};
        const float* params = engine.host(State::params);
        hashes[0] = state_hash(params, engine.layout().count);
        model::write_huggingface(
            partial.path().string(), engine.spec(),
            model::param_views(engine.layout(), const_cast<float*>(params), DType::f32), &tokenizer,
            fault_point);
        write_text(partial.path() / "tokenizer.json", tokenizer_json);
        write_optimizer(partial.path() / "optimizer.safetensors", engine, hashes);
        const std::string config = read_text_file((partial.path() / "config.json").string());
        write_text(partial.path() / "state.json",
                   state_text(state, hashes, text_hash(config), text_hash(tokenizer_json)));
        sync_path(partial.path().string());
        fault_point();
        partial.put(target);
        fault_point();
    } catch (const Error& error) {
        ErrorInfo info = error.info();
        const std::vector<std::int64_t> before = steps();
        info.remedy += before.empty() ? std::string("; there is no checkpoint before it")
                                      : fmt::format("; then --resume {} goes on from {}", run_,
                                                    name_of(folder(before.back())));
        throw Error(error.kind(), std::move(info));
    }
    sync_path(all.string());
    fault_point();
}

void Checkpoints::prune(std::int64_t newest, std::int64_t keep) {
    std::vector<std::int64_t> all = steps();
    std::erase_if(all, [newest](std::int64_t step) { return step > newest; });
    if (keep <= 0 || static_cast<std::int64_t>(all.size()) <= keep) return;
    for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < all.size(); ++i) {
        // Under another name first: half removed it must not look like a checkpoint.
        const fs::path path = folder(all[i]);
        const fs::path old = path.parent_path() / (kOld + path.filename().string());
        std::error_code code;
        fs::rename(path, old, code);
        fault_point();
        if (!code) fs::remove_all(old, code);
        fault_point();
    }
}

std::string Checkpoints::put_aside(std::int64_t step) {
    const fs::path path = folder(step);
    const fs::path aside = path.parent_path() / (kDamaged + path.filename().string());
    std::error_code code;
    fs::remove_all(aside, code);  // of an earlier time; it was of no use then
    fs::rename(path, aside, code);
    if (code) return "";
    sync_path(path.parent_path().string());
    return aside.string();
}

// Readers of files speak to who downloaded them. Here there is one remedy, whatever the damage is.
template <typename Read>
auto Checkpoints::reading(std::int64_t step, Read&& read) const {
    try {
        return read();
    } catch (const OtherVersion&) {
        throw;
    } catch (const Error& error) {
        const fs::path path = folder(step);
        // What is on the disk may be good: the reader says why it could not get at it.
        bool readable = true;
        for (const char* name : kFiles) {
            const std::string file = (path / name).string();
            readable = readable && (::access(file.c_str(), R_OK) == 0 || errno == ENOENT ||
                                    errno == ENOTDIR || errno == ELOOP);
        }
        if (error.kind() != ErrorKind::input || !readable) throw;
        const std::vector<std::int64_t> all = steps();
        const auto at = std::lower_bound(all.begin(), all.end(), step);
        ErrorInfo info = error.info();
        if (info.file.empty()) info.file = path.string();
        info.problem += "; the checkpoint is damaged";
        info.remedy =
            at != all.begin()
                ? fmt::format("--resume {} goes on from {}", run_, name_of(folder(*std::prev(at))))
                : fmt::format(
                      "there is none before it: start again in another folder, or with "
                      "--init where {} is good",
                      (path / "model.safetensors").string());
        throw DamagedCheckpoint(std::move(info));
    }
}

TrainState Checkpoints::read_state(std::int64_t step) const {
    return reading(step, [&] { return parse_state(step); });
}

model::ModelSpec Checkpoints::read_spec(std::int64_t step) const {
    return reading(step, [&] {
        const std::string config = folder(step) + "/config.json";
        StateFile(folder(step) + "/state.json")
            .check("config_hash", text_hash(read_text_file(config)), config);
        return model::open_huggingface(folder(step), {}).spec;
    });
}

bool Checkpoints::check_tokenizer(std::int64_t step, const std::string& tokenizer_json,
                                  const std::string& file) const {
    return reading(step, [&] {
        const StateFile state(folder(step) + "/state.json");
        if (!state.has("tokenizer_hash")) return true;
        const std::uint64_t wanted = state.hash("tokenizer_hash");
        const std::string own = (fs::path(folder(step)) / "tokenizer.json").string();
        std::error_code code;
        const bool same = fs::exists(own, code) && text_hash(read_text_file(own)) == wanted;
        if (text_hash(tokenizer_json) == wanted) return same;
        throw OtherTokenizer(
            Error::input({.file = file,
                          .problem = "was changed since the run's last checkpoint",
                          .remedy = same ? fmt::format("put the one back that {} has", folder(step))
                                         : "put the one back that the data was packed with"}));
    });
}

void Checkpoints::load(std::int64_t step, model::TrainEngine& engine) const {
    reading(step, [&] { load_values(step, engine); });
}

TrainState Checkpoints::parse_state(std::int64_t step) const {
    const StateFile file(folder(step) + "/state.json");
    TrainState out;
    out.step = file.integer("step");
    if (out.step != step) throw file.bad("step", "is not that of the folder's name");
    if (!file.field("options").is_object()) throw file.bad("options", "must be an object");
    out.options = read_options(file.field("options"), file.path());
    try {
        out.options.validate();
    } catch (const Error& error) {  // nobody gave them: a damaged file has them
        throw file.bad("options", error.what());
    }
    out.options.out = run_;
    out.data_hash = file.hash("data_hash");
    out.skipped = file.integer("skipped");
    out.skipped_in_row = file.integer("skipped_in_row");
    out.seconds = file.number("seconds");
    if (!file.field("val_loss").is_null()) out.val_loss = file.number("val_loss");
    out.val_step = file.integer("val_step");
    if (!file.field("samples").is_array()) throw file.bad("samples", "must be a list");
    for (const JsonValue sample : file.field("samples")) {
        if (!sample.is_object() || !sample.contains("step") || !sample.contains("text") ||
            !sample["step"].is_number_integer() || !sample["text"].is_string()) {
            throw file.bad("samples", "must hold steps and texts");
        }
        out.samples.push_back(
            {sample["step"].get<std::int64_t>(), sample["text"].get<std::string>()});
    }
    file.check_content();
    return out;
}

void Checkpoints::load_values(std::int64_t step, model::TrainEngine& engine) const {
    const std::string path = folder(step);
    const StateFile file(path + "/state.json");
    const std::int64_t count = engine.layout().count;
    const auto check = [&](const float* values, const char* key, const std::string& where) {
        if (state_hash(values, count) == file.hash(key)) return;
        throw Error::input(
            {.file = where, .field = key, .problem = "the values are not those that were written"});
    };
    {
        const model::Model loaded = model::load_model(path);
        engine.load(loaded);
        check(engine.host(State::params), "params_hash", path + "/model.safetensors");
    }
    const std::string optimizer = path + "/optimizer.safetensors";
    const auto tensors = formats::SafetensorsFile::open(optimizer);
    for (const char* name : {"m", "v"}) {
        const auto* tensor = tensors.find_tensor(name);
        if (!tensor || tensor->view.dtype != DType::f32 || tensor->view.shape != Shape{count}) {
            throw Error::input({.file = optimizer,
                                .field = fmt::format("tensor {}", name),
                                .problem = fmt::format("there must be {} f32 of it", count)});
        }
        // The map promises no alignment.
        std::vector<float> values(static_cast<std::size_t>(count));
        std::memcpy(values.data(), tensor->view.data, tensor->view.bytes());
        check(values.data(), name[0] == 'm' ? "m_hash" : "v_hash", optimizer);
        engine.set_state(nullptr, name[0] == 'm' ? values.data() : nullptr,
                         name[0] == 'v' ? values.data() : nullptr);
    }
}

}  // namespace mr::train
