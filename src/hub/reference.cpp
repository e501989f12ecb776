#include "hub/reference.h"

#include <algorithm>
#include <cstddef>

namespace mr::hub {
namespace {

constexpr std::size_t kMostBytes = 255;  // of a name: file systems' limit

bool is_name_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
}

bool is_name(std::string_view word) {
    return !word.empty() && word.size() <= 96 && word[0] != '.' && word[0] != '-' &&
           std::ranges::all_of(word, is_name_letter) && word.find("--") == std::string_view::npos &&
           word.find("..") == std::string_view::npos;
}

// What follows a '/' after `beginning`; empty if the text begins otherwise.
std::string_view behind(std::string_view text, std::string_view beginning) {
    if (beginning.empty() || !text.starts_with(beginning)) return {};
    text.remove_prefix(beginning.size());
    return text.starts_with('/') ? text.substr(1) : std::string_view();
}

// Takes what comes before the next '/'.
std::string_view next_part(std::string_view& path) {
    const std::string_view part = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(part.size() + 1, path.size()));
    return part;
}

}  // namespace

std::optional<Reference> read_reference(std::string_view text) {
    Reference out;
    const std::size_t colon = text.find(':');
    const std::string_view id = text.substr(0, colon);
    const std::size_t slash = id.find('/');
    if (slash == std::string_view::npos) return std::nullopt;
    out.owner = id.substr(0, slash);
    out.name = id.substr(slash + 1);
    if (!is_name(out.owner) || !is_name(out.name)) return std::nullopt;
    if (colon == std::string_view::npos) return out;
    out.what = text.substr(colon + 1);
    if (!is_safe_path(out.what)) return std::nullopt;
    return out;
}

std::optional<Address> read_address(std::string_view text, std::string_view hub) {
    while (hub.ends_with('/')) hub.remove_suffix(1);
    std::string_view path = behind(text, hub);
    for (const std::string_view scheme : {"https://", "http://"}) {
        if (text.starts_with(scheme)) text.remove_prefix(scheme.size());
    }
    for (const std::string_view host : {"huggingface.co", "www.huggingface.co", "hf.co"}) {
        if (path.empty()) path = behind(text, host);
    }
    path = path.substr(0, path.find_first_of("?#"));
    const std::string_view owner = next_part(path);
    const auto model =
        read_reference(std::string(owner) + "/" + std::string(next_part(path)));  // :TYPE, too
    if (!model) return std::nullopt;
    Address out{*model, {}};
    const std::string_view page = next_part(path);
    if (page == "tree" || page == "blob" || page == "resolve") out.revision = next_part(path);
    if ((page == "blob" || page == "resolve") && !path.empty()) {
        if (!is_safe_path(path)) return std::nullopt;
        out.model.what = path;
    }
    return out;
}

bool is_safe_path(std::string_view path) {
    if (path.empty() || path.size() > 1024) return false;
    while (true) {
        const std::size_t end = path.find('/');
        const std::string_view part = path.substr(0, end);
        const bool plain = std::ranges::all_of(
            part, [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; });
        if (part.empty() || part[0] == '.' || part.size() > kMostBytes || !plain ||
            part.find('\\') != std::string_view::npos) {
            return false;
        }
        if (end == std::string_view::npos) return true;
        path.remove_prefix(end + 1);
    }
}

}  // namespace mr::hub
