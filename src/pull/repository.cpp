#include "pull/repository.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "formats/json.h"
#include "hub/cache.h"

namespace mr::pull {
namespace {

bool is_hash(std::string_view text, std::size_t digits) {
    return text.size() == digits && std::ranges::all_of(text, [](char c) {
               return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
           });
}

// An ETag without its quotes, as it can be a file's name; else empty.
std::string plain_etag(std::string_view etag) {
    if (etag.starts_with("W/")) etag.remove_prefix(2);
    if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
        etag = etag.substr(1, etag.size() - 2);
    }
    const bool plain = !etag.empty() && etag.size() <= 200 && etag[0] != '.' &&
                       std::ranges::all_of(etag, [](char c) {
                           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                                  (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
                       });
    return plain ? std::string(etag) : std::string();
}

std::string text_or_empty(std::optional<formats::JsonValue> value) {
    return value && value->is_string() ? std::string(value->text()) : std::string();
}

std::int64_t size_or_none(std::optional<formats::JsonValue> value) {
    return value && value->is_integer_in(0, std::int64_t{1} << 50) ? value->get<std::int64_t>()
                                                                   : -1;
}

RemoteFile read_file(formats::JsonValue entry) {
    RemoteFile out;
    out.path = text_or_empty(entry.find_set("rfilename"));
    out.size = size_or_none(entry.find_set("size"));
    if (std::string id = text_or_empty(entry.find_set("blobId")); is_hash(id, 40)) out.git = id;
    if (const auto large = entry.find_set("lfs"); large && large->is_object()) {
        out.git.clear();  // of the pointer, not of the content
        std::string hash = text_or_empty(large->find_set("sha256"));
        if (hash.empty()) hash = text_or_empty(large->find_set("oid"));
        if (is_hash(hash, 64)) out.sha256 = hash;
        if (const std::int64_t size = size_or_none(large->find_set("size")); size >= 0) {
            out.size = size;
        }
    }
    return out;
}

}  // namespace

void refuse_answer(const Http& http, const hub::Reference& model, const std::string& what,
                   const Answer& answer) {
    const std::string page = http.hub() + "/" + model.id();
    const auto refuse = [&](std::string problem, std::string remedy = {}) {
        throw Error::input(
            {.file = what, .problem = std::move(problem), .remedy = std::move(remedy)});
    };
    const std::string set_token = "set HF_TOKEN to a token of yours";
    if (answer.error_code == "GatedRepo" || answer.status == 403) {
        refuse(http.has_token() ? "is gated, and this token has no access to it"
                                : "is gated: the hub gives it to those who accepted its terms",
               fmt::format("accept them at {}{}", page,
                           http.has_token() ? "" : ", then " + set_token));
    }
    if (answer.error_code == "RevisionNotFound") {
        refuse("has no such revision", "leave --revision out, or see " + page + "/tree/main");
    }
    if (answer.error_code == "EntryNotFound") refuse("is not there any more", "see " + page);
    if (answer.status == 401) {
        refuse(http.has_token() ? "the hub does not accept the token, or has no such model"
                                : "the hub has no such model, or it is private or gated",
               http.has_token() ? "check the name, and HF_TOKEN"
                                : "check the name; for a private one, " + set_token);
    }
    if (answer.status == 404) {
        refuse(fmt::format("{} has no such model", http.hub()), "check the name");
    }
    if (answer.status == 429) {
        refuse("the hub answers too many requests (429)",
               http.has_token() ? "try again later" : "try again later, or " + set_token);
    }
    refuse(fmt::format("the hub answers {}{}", answer.status,
                       answer.error_message.empty() ? "" : ": " + answer.error_message),
           answer.status >= 500 ? "try again later" : "check --hub or HF_ENDPOINT");
    throw ContractError("refused above");
}

Repository open_repository(Http& http, const hub::Reference& model, const std::string& revision) {
    const std::string url = fmt::format("{}/api/models/{}/revision/{}?blobs=true", http.hub(),
                                        model.id(), Http::escaped(revision));
    const Answer answer = http.get(url);
    if (answer.status != 200) refuse_answer(http, model, model.id(), answer);
    const auto document =
        formats::JsonDocument::parse(answer.body, url, {}, {.repeated_keys = true});
    Repository out;
    out.commit = text_or_empty(document.root().find_set("sha"));
    const auto files = document.root().find_set("siblings");
    if (!hub::is_commit(out.commit) || !files || !files->is_array()) {
        throw Error::input({.file = url,
                            .problem = "the answer is not a hub's: it names no commit and files",
                            .remedy = "check --hub or HF_ENDPOINT"});
    }
    for (const formats::JsonValue entry : *files) {
        RemoteFile file = read_file(entry);
        if (hub::is_safe_path(file.path)) out.files.push_back(std::move(file));
    }
    return out;
}

void complete_file(Http& http, const hub::Reference& model, const std::string& commit,
                   RemoteFile& file) {
    if (file.size >= 0 && !file.blob().empty()) return;
    const Answer answer = http.head(file_url(http, model, commit, file.path));
    if (answer.status >= 400) refuse_answer(http, model, model.id() + ": " + file.path, answer);
    const bool linked = !answer.linked_etag.empty();
    const std::string etag = plain_etag(linked ? answer.linked_etag : answer.etag);
    if (file.blob().empty()) {
        (is_hash(etag, 64) ? file.sha256 : is_hash(etag, 40) ? file.git : file.etag) = etag;
    }
    if (file.size < 0) {
        const std::string& digits = answer.linked_size;
        std::from_chars(digits.data(), digits.data() + digits.size(), file.size);
        if (digits.empty() && answer.status == 200) file.size = answer.length;
    }
    if (file.size < 0 || file.blob().empty()) {
        throw Error::input({.file = model.id() + ": " + file.path,
                            .problem = "the hub says neither its size nor its hash",
                            .remedy = "check --hub or HF_ENDPOINT"});
    }
}

std::string file_url(const Http& http, const hub::Reference& model, const std::string& commit,
                     const std::string& path) {
    std::string out = fmt::format("{}/{}/resolve/{}", http.hub(), model.id(), commit);
    for (std::size_t at = 0; at <= path.size();) {
        const std::size_t end = std::min(path.find('/', at), path.size());
        out += "/" + Http::escaped(std::string_view(path).substr(at, end - at));
        at = end + 1;
    }
    return out;
}

}  // namespace mr::pull
