#include "train/checkpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <string_view>

#include "core/error.h"
#include "core/mapped_file.h"
#include "core/output_file.h"
#include "core/output_folder.h"
#include "formats/safetensors.h"
#include "model/io/source.h"
#include "model/io/write_model.h"
#include "train/fault.h"
#include "train/state_file.h"

namespace mr::train {
namespace {

namespace fs = std::filesystem;
using formats::JsonValue;
using State = model::TrainEngine::State;

constexpr const char* kPartial = ".partial-";  // before the name of a checkpoint being written
constexpr const char* kOld = ".old-";          // ... being removed
constexpr const char* kDamaged = "damaged-";   // ... that cannot be read
constexpr const char* kLayout = "millrace-flat-1";
constexpr const char* kFiles[] = {"",           "config.json",           "model.safetensors",
                                  "state.json", "optimizer.safetensors", "tokenizer.json"};

void fault_point() {
    if (save_point) save_point();
}

std::string name_of(const fs::path& path) { return path.filename().string(); }

std::string checkpoint_name(std::int64_t step) {
    return fmt::format("{}{:06}", model::kCheckpointPrefix, step);
}

void write_text(const fs::path& path, const std::string& text) {
    OutputFile file(path.string());
    file.write(text);
    file.commit();
    fault_point();
}

// Piece by piece, in the order of the buffer: a rank may not have all of it.
void for_each_part(model::TrainEngine& engine, State state,
                   const std::function<void(const float* values, std::int64_t count)>& take) {
    const std::int64_t count = engine.layout().count;
    constexpr std::int64_t kPart = 1 << 18;
    std::vector<float> values(static_cast<std::size_t>(std::min(kPart, count)));
    for (std::int64_t at = 0; at < count; at += kPart) {
        const std::int64_t part = std::min(kPart, count - at);
        engine.read(state, at, at + part, values.data());
        take(values.data(), part);
    }
}

// Writes config.json, model.safetensors and tokenizer_config.json. Each tensor is read when it is
// written.
void write_weights(const fs::path& folder, model::TrainEngine& engine,
                   const text::Tokenizer& tokenizer, StateHashes& hashes) {
    model::StateHash hash;
    for_each_part(engine, State::params,
                  [&](const float* values, std::int64_t count) { hash.add(values, count); });
    hashes.params = hash.value();
    const auto read = [&](model::RoleAt at) {
        const auto& entries = engine.layout().entries;
        const auto entry = std::ranges::find_if(entries, [at](const auto& each) {
            return each.at.role == at.role && each.at.layer == at.layer;
        });
        MR_CHECK(entry != entries.end(), "the layout has every tensor of the model");
        const std::int64_t count = entry->shape.count();
        const auto values = std::make_shared<std::vector<float>>(static_cast<std::size_t>(count));
        engine.read(State::params, entry->offset, entry->offset + count, values->data());
        return model::RoleTensor{Tensor(values->data(), DType::f32, entry->shape), values};
    };
    model::write_huggingface(folder.string(), engine.spec(), read, &tokenizer, fault_point);
}

void write_optimizer(const fs::path& path, model::TrainEngine& engine, StateHashes& hashes) {
    const std::int64_t count = engine.layout().count;
    formats::SafetensorsWriter writer(path.string());
    writer.set_metadata("layout", kLayout);
    writer.declare("m", DType::f32, {count});
    writer.declare("v", DType::f32, {count});
    for (const State state : {State::m, State::v}) {
        model::StateHash hash;
        for_each_part(engine, state, [&](const float* values, std::int64_t part) {
            hash.add(values, part);
            writer.write(values, static_cast<std::size_t>(part) * sizeof(float));
            fault_point();
        });
        (state == State::m ? hashes.m : hashes.v) = hash.value();
    }
    writer.finish();
    fault_point();
}

}  // namespace

Checkpoints::Checkpoints(std::string run) : run_(std::move(run)), at_(run_) {}

void Checkpoints::move(std::string run, std::string at) {
    run_ = std::move(run);
    at_ = std::move(at);
}

std::string Checkpoints::folder(std::int64_t step) const {
    return (fs::path(run_) / model::kCheckpoints / checkpoint_name(step)).string();
}

fs::path Checkpoints::place(std::int64_t step) const {
    return fs::path(at_) / model::kCheckpoints / checkpoint_name(step);
}

// at_ is no name that a user knows.
ErrorInfo Checkpoints::with_names(ErrorInfo info) const {
    if (at_ == run_) return info;
    for (std::string* text : {&info.file, &info.problem, &info.remedy}) {
        for (std::size_t at = 0; (at = text->find(at_, at)) != std::string::npos;
             at += run_.size()) {
            text->replace(at, at_.size(), run_);
        }
    }
    return info;
}

void Checkpoints::prepare() {
    const fs::path all = fs::path(at_) / model::kCheckpoints;
    std::error_code code;
    fs::create_directories(all, code);
    if (code) {
        throw Error::input({.file = (fs::path(run_) / model::kCheckpoints).string(),
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
    sync_path(at_);
    const std::vector<std::int64_t> there = steps();
    mine_ = {there.begin(), there.end()};
}

std::vector<std::int64_t> Checkpoints::steps() const {
    std::vector<std::int64_t> out;
    for (const std::string& path : model::checkpoint_folders(at_)) {
        out.push_back(*model::checkpoint_step(name_of(path)));
    }
    return out;
}

void Checkpoints::save(model::TrainEngine& engine, const TrainState& state,
                       const text::Tokenizer& tokenizer, const std::string& tokenizer_json) {
    const fs::path target = place(state.step);
    const fs::path all = target.parent_path();
    try {
        PartialFolder partial(all / (kPartial + target.filename().string()), target);
        fault_point();
        StateHashes hashes;
        write_weights(partial.path(), engine, tokenizer, hashes);
        write_text(partial.path() / "tokenizer.json", tokenizer_json);
        write_optimizer(partial.path() / "optimizer.safetensors", engine, hashes);
        hashes.config = text_hash(read_text_file((partial.path() / "config.json").string()));
        hashes.tokenizer = text_hash(tokenizer_json);
        write_text(partial.path() / "state.json", state_text(state, hashes));
        sync_path(partial.path().string());
        fault_point();
        partial.put(target);
        mine_.insert(state.step);
        fault_point();
    } catch (const comm::LostRank&) {
        throw;  // the run is over
    } catch (const Error& error) {
        ErrorInfo info = with_names(error.info());
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
    std::erase_if(all, [&](std::int64_t step) { return step > newest || !mine_.contains(step); });
    if (keep <= 0 || static_cast<std::int64_t>(all.size()) <= keep) return;
    for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < all.size(); ++i) {
        // Renamed first: a half-removed folder must not look like a checkpoint.
        const fs::path path = place(all[i]);
        const fs::path old = path.parent_path() / (kOld + path.filename().string());
        std::error_code code;
        fs::rename(path, old, code);
        fault_point();
        if (!code) fs::remove_all(old, code);
        fault_point();
    }
}

std::string Checkpoints::put_aside(std::int64_t step) {
    const fs::path path = place(step);
    const fs::path aside = path.parent_path() / (kDamaged + path.filename().string());
    std::error_code code;
    fs::remove_all(aside, code);  // left from an earlier time
    fs::rename(path, aside, code);
    if (code) return "";
    sync_path(path.parent_path().string());
    return fs::path(folder(step)).replace_filename(aside.filename()).string();
}

// Errors of file readers address users who downloaded the file. For a checkpoint there is one
// remedy, whatever the damage.
template <typename Read>
auto Checkpoints::reading(std::int64_t step, Read&& read) const {
    try {
        return read();
    } catch (const OtherVersion&) {
        throw;
    } catch (const Error& error) {
        const fs::path path = folder(step);
        // The file may be good: the reader says why it could not be opened.
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
                          .remedy = same ? fmt::format("restore the one in {}", folder(step))
                                         : "restore the one that the data was packed with"}));
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
    } catch (const Error& error) {  // no user set these options: the file is damaged
        throw file.bad("options", error.what());
    }
    out.options.out = run_;
    out.data_hash = file.hash("data_hash");
    if (file.has("machine")) {  // older checkpoints lack it
        if (!file.field("machine").is_object()) throw file.bad("machine", "must be an object");
        for (const auto& [name, value] : file.field("machine").items()) {
            if (!value.is_string()) throw file.bad("machine", "must hold strings");
            out.machine.emplace_back(name, value.get<std::string>());
        }
    }
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
    const auto check = [&](std::uint64_t hash, const char* key, const std::string& where) {
        if (hash == file.hash(key)) return;
        throw Error::input(
            {.file = where, .field = key, .problem = "the values are not those that were written"});
    };
    {
        const model::Source source = model::open_huggingface(path, {});
        source.require_all_known();
        source.check_sums({});
        engine.load(source.spec, [&](model::RoleAt at) { return source.read(at); });
        check(engine.params_hash(), "params_hash", path + "/model.safetensors");
    }
    const std::string optimizer = path + "/optimizer.safetensors";
    const auto tensors = formats::SafetensorsFile::open(optimizer);
    formats::check_sums(tensors.tensors());
    for (const State state : {State::m, State::v}) {
        const char* const name = state == State::m ? "m" : "v";
        const auto* tensor = tensors.find_tensor(name);
        if (!tensor || tensor->view.dtype != DType::f32 || tensor->view.shape != Shape{count}) {
            throw Error::input({.file = optimizer,
                                .field = fmt::format("tensor {}", name),
                                .problem = fmt::format("must hold {} f32 values", count)});
        }
        model::StateHash hash;
        constexpr std::int64_t kPart = 1 << 18;
        std::vector<float> values;
        for (std::int64_t at = 0; at < count; at += kPart) {
            // The map guarantees no alignment.
            values.resize(static_cast<std::size_t>(std::min(kPart, count - at)));
            std::memcpy(values.data(),
                        static_cast<const std::byte*>(tensor->view.data) +
                            static_cast<std::size_t>(at) * sizeof(float),
                        values.size() * sizeof(float));
            hash.add(values.data(), std::ssize(values));
            engine.write(state, at, at + std::ssize(values), values.data());
        }
        check(hash.value(), state == State::m ? "m_hash" : "v_hash", optimizer);
    }
}

}  // namespace mr::train
