// millrace-pull: downloads a model from a hub into the cache. `millrace pull` parses the command
// line and starts it. It is the only program that links libcurl, so that the server cannot call
// out.
//
// Exit codes: 0, 1 bad input or no such model, 2 usage, 128 + the signal after Ctrl-C.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <csignal>
#include <exception>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/terminal.h"
#include "core/error.h"
#include "core/mapped_file.h"
#include "formats/json.h"
#include "hub/cache.h"
#include "hub/choice.h"
#include "hub/reference.h"
#include "model/names.h"
#include "observe/units.h"
#include "pull/http.h"
#include "pull/meter.h"
#include "pull/repository.h"
#include "pull/store.h"

namespace mr::pull {
namespace {

namespace fs = std::filesystem;

struct Options {
    hub::Reference model;
    std::string hub, revision = "main", cache, ca;
    bool quiet = false, verify = false;
    Patience patience;
};

[[noreturn]] void refuse_usage(const std::string& word, const char* problem) {
    throw Error::usage(
        {.field = word, .problem = problem, .remedy = "'millrace pull --help' shows the options"});
}

double read_seconds(const std::string& name, const std::string& text) {
    double value = 0;
    const char* const end = text.data() + text.size();
    if (std::from_chars(text.data(), end, value).ptr != end || !(value >= 0 && value < 1e6)) {
        refuse_usage(name, "needs a number");
    }
    return value;
}

// What `millrace pull` passes on: --NAME VALUE, and the model last.
Options read_options(const std::vector<std::string>& words) {
    Options out;
    std::optional<hub::Reference> model;
    const std::pair<std::string_view, std::string*> known[] = {{"--hub", &out.hub},
                                                               {"--revision", &out.revision},
                                                               {"--cache", &out.cache},
                                                               {"--ca", &out.ca}};
    for (std::size_t i = 0; i < words.size(); ++i) {
        const std::string& word = words[i];
        if (word == "--quiet" || word == "--verify") {
            (word == "--quiet" ? out.quiet : out.verify) = true;
            continue;
        }
        if (!word.starts_with("--")) {
            model = hub::read_reference(word);
            if (!model) refuse_usage(word, "is not OWNER/NAME or OWNER/NAME:TYPE");
            continue;
        }
        if (i + 1 == words.size()) refuse_usage(word, "needs a value");
        const std::string& value = words[++i];
        const auto* found = std::find_if(std::begin(known), std::end(known),
                                         [&](const auto& one) { return one.first == word; });
        if (found != std::end(known)) {
            *found->second = value;
        } else if (word == "--retries") {
            out.patience.most = static_cast<int>(read_seconds(word, value));
        } else if (word == "--retry-wait") {
            out.patience.first = read_seconds(word, value);
        } else {
            refuse_usage(word, "unknown option");
        }
    }
    if (!model) refuse_usage("NAME", "is required");
    out.model = *model;
    return out;
}

// A token in a variable, or in the file that huggingface_hub's login writes.
std::string find_token() {
    std::string token;
    std::string from = "HF_TOKEN";
    for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
        if (token.empty()) token = hub::variable(name);
    }
    if (token.empty()) {
        const std::string named = hub::variable("HF_TOKEN_PATH");
        const fs::path file = named.empty() ? hub::home_folder() / "token" : fs::path(named);
        std::error_code code;
        if (!fs::is_regular_file(file, code) || fs::file_size(file, code) == 0) return {};
        token = read_text_file(file.string(), 1u << 16);
        from = file.string();
    }
    const auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
    while (!token.empty() && is_space(token.back())) token.pop_back();
    while (!token.empty() && is_space(token.front())) token.erase(0, 1);
    if (!std::ranges::all_of(token, [](char c) { return c > 0x20 && c < 0x7f; })) {
        throw Error::input({.file = from,
                            .problem = "holds no token: a token has no spaces and no letters "
                                       "beyond ASCII"});  // and is never shown
    }
    return token;
}

std::string first_set(std::initializer_list<const char*> names) {
    for (const char* name : names) {
        if (std::string value = hub::variable(name); !value.empty()) return value;
    }
    return {};
}

HttpOptions http_options(const Options& options) {
    HttpOptions out;
    out.hub = options.hub;
    if (out.hub.empty()) out.hub = first_set({"HF_ENDPOINT"});
    if (out.hub.empty()) out.hub = hub::kUsualHub;
    out.ca = options.ca;
    if (out.ca.empty()) {
        out.ca = first_set({"CURL_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"});
    }
    out.ca_folder = options.ca.empty() ? first_set({"SSL_CERT_DIR"}) : "";
    if (std::error_code code; fs::is_directory(out.ca, code)) {
        out.ca_folder = std::exchange(out.ca, {});
    }
    out.patience = options.patience;
    out.token = find_token();
    if (!out.ca.empty()) read_text_file(out.ca, std::size_t{64} << 20);  // an error that names it
    return out;
}

// Before gigabytes of weights come: whether the engine knows what config.json describes.
void require_known_family(const hub::Reference& model, const std::string& config) {
    const auto document = formats::JsonDocument::parse(read_text_file(config, 1u << 24), config);
    const formats::JsonValue root = document.root();
    const auto refuse = [&](const char* field, std::string value, const char* problem,
                            std::string remedy) {
        throw Error::input({.file = model.id(),
                            .field = field,
                            .value = std::move(value),
                            .problem = problem,
                            .remedy = std::move(remedy)});
    };
    if (root.find_set("quantization_config")) {
        refuse("quantization_config", "", "weights quantised this way are not supported",
               "pull the original model, or a GGUF of it");
    }
    const formats::JsonValue type = root["model_type"];
    const formats::JsonValue names = root["architectures"];
    const bool named = names.is_array() && names.size() == 1 && names.front().is_string();
    const bool known = std::ranges::any_of(model::family_names(), [&](const auto& family) {
        if (type.is_string()) return type == family.model_type;
        return named && names.front() == family.architecture;
    });
    if (known) return;
    refuse(type.is_string() ? "model_type" : "architectures",
           (type.is_string() ? type : names).shown(), "this architecture is not supported",
           model::listed_families(&model::FamilyNames::architecture) + " are");
}

void require_room(const fs::path& cache, std::uint64_t bytes) {
    struct statvfs disk {};
    if (::statvfs(cache.c_str(), &disk) != 0) return;
    const std::uint64_t free = std::uint64_t{disk.f_bavail} * disk.f_frsize;
    if (bytes <= free) return;
    throw Error::input(
        {.file = cache.string(),
         .problem = fmt::format("{} are to come, and the disk has room for {}",
                                observe::short_bytes(static_cast<double>(bytes)),
                                observe::short_bytes(static_cast<double>(free))),
         .remedy = "make room, or name another folder with --cache or HF_HUB_CACHE"});
}

// After Ctrl-C. continues: something is here already.
struct Stopped {
    bool continues;
};

class Pull {
  public:
    explicit Pull(Options options)
        : options_(std::move(options)),
          meter_(options_.quiet),
          http_(http_options(options_), [this](std::string_view what) { meter_.idle(what); }) {}

    // The path of what commands open.
    std::string run() {
        try {
            return fetch();
        } catch (const TransportError& error) {
            if (!error.may_pass || !meter_.began()) throw;
            throw TransportError(
                fmt::format("{}; give the command again: it continues where it ended",
                            error.what()),
                true);
        } catch (const cli::Interrupted&) {
            throw Stopped{meter_.began()};
        }
    }

    std::string summary() const {
        if (meter_.fetched() == 0) {
            return options_.verify ? "everything was here, undamaged" : "everything was here";
        }
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
        const auto bytes = static_cast<double>(meter_.fetched());
        return fmt::format("{} in {} ({}/s)", observe::short_bytes(bytes),
                           observe::long_seconds(seconds), observe::short_bytes(bytes / seconds));
    }

  private:
    std::string fetch() {
        if (http_.withholds_token()) {
            meter_.remark(
                fmt::format("{} is asked without encryption, and without the token", http_.hub()));
        }
        const hub::Reference& model = options_.model;
        repository_ = open_repository(http_, model, options_.revision);
        std::vector<std::string> paths;
        for (const RemoteFile& file : repository_.files) paths.push_back(file.path);
        hub::Choice choice = hub::choose(model, paths);
        fs::path cache = options_.cache.empty() ? hub::cache_folder() : fs::path(options_.cache);
        if (cache.empty()) {
            throw Error::usage(
                {.field = "--cache", .problem = "is needed where there is no home folder"});
        }
        Store store(http_, model, fs::absolute(cache), repository_.commit, options_.verify, meter_);
        if (choice.kind == hub::Kind::folder) fetch_folder(store, choice);
        fetch_all(store, choice.files);
        store.set_revision(options_.revision);
        meter_.remove();
        if (choice.kind == hub::Kind::folder) return store.snapshot().string();
        return (store.snapshot() / choice.files.front()).string();
    }

    RemoteFile& file(const std::string& path) {
        const auto found = std::ranges::find_if(
            repository_.files, [&](const RemoteFile& one) { return one.path == path; });
        if (found == repository_.files.end()) {
            throw Error::input({.file = options_.model.id(),
                                .field = path,
                                .problem = "is named by the index, and the repository has no such "
                                           "file"});
        }
        complete_file(http_, options_.model, repository_.commit, *found);
        return *found;
    }

    // config.json comes first: it may be refused. The index then names the shards.
    void fetch_folder(Store& store, hub::Choice& choice) {
        store.fetch(file("config.json"));
        require_known_family(options_.model, (store.snapshot() / "config.json").string());
        if (std::ranges::find(choice.files, "tokenizer.json") == choice.files.end()) {
            meter_.remark(options_.model.id() +
                          " has no tokenizer.json: give commands one with --tokenizer");
        }
        if (!choice.sharded) return;
        store.fetch(file(hub::kIndexName));
        const std::string index = (store.snapshot() / hub::kIndexName).string();
        const std::string text = read_text_file(index, std::size_t{64} << 20);
        for (std::string& shard : hub::shards_of_index(text, index)) {
            choice.files.push_back(std::move(shard));
        }
    }

    void fetch_all(Store& store, const std::vector<std::string>& paths) {
        std::uint64_t total = 0, missing = 0;
        for (const std::string& path : paths) {
            const RemoteFile& one = file(path);
            total += static_cast<std::uint64_t>(one.size);
            missing += store.missing(one);
        }
        require_room(store.cache(), missing);
        meter_.begin(total);
        for (const std::string& path : paths) store.fetch(file(path));
    }

    Options options_;
    Meter meter_;
    Http http_;
    Repository repository_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// As huggingface_hub reads them: the first that is set counts.
void require_online() {
    for (const char* name : {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}) {
        const std::string given = hub::variable(name);
        if (given.empty()) continue;
        std::string value = given;
        for (char& c : value) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
        if (value != "1" && value != "ON" && value != "YES" && value != "TRUE") return;
        throw Error::usage({.field = name,
                            .value = given,
                            .problem = "says that nothing is downloaded",
                            .remedy = "unset it"});
    }
}

int pull(const std::vector<std::string>& words) {
    Options options = read_options(words);
    require_online();
    const bool quiet = options.quiet;
    // Found by its name: what lies where commands look, and is what they take first.
    const bool by_name = options.cache.empty() && options.revision == "main";
    const std::string name = options.model.text();
    const cli::InterruptGuard guard;
    Pull job(std::move(options));
    const std::string path = job.run();
    cli::out(path + "\n");
    if (!quiet) {
        cli::note(fmt::format("{}; 'millrace run {}' uses it", job.summary(),
                              by_name ? name : cli::one_line(path)));
    }
    return 0;
}

int fail(int code, std::string_view message) {
    cli::complain(cli::one_line(message));
    return code;
}

}  // namespace

int program(const std::vector<std::string>& words) {
    cli::hold_standard_streams();
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);  // a write returns an error instead
    try {
        return pull(words);
    } catch (const Error& error) {
        return fail(error.exit_code(), error.what());
    } catch (const TransportError& error) {
        return fail(1, error.what());
    } catch (const cli::OutputClosed&) {
        return 0;
    } catch (const Stopped& stopped) {
        cli::note(stopped.continues ? "stopped; the same command continues where it ended"
                                    : "stopped");
        return cli::InterruptGuard::exit_code();
    } catch (const std::bad_alloc&) {
        return fail(3, "out of memory");
    } catch (const ContractError& error) {
        return fail(1, fmt::format("internal error, please report it: {}", error.what()));
    } catch (const std::exception& error) {
        return fail(1, error.what());
    }
}

}  // namespace mr::pull

int main(int argc, char** argv) {
    return mr::pull::program({argv + std::min(argc, 1), argv + argc});
}
