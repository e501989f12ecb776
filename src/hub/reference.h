// Names of models on a hub, as on Hugging Face's: OWNER/NAME, OWNER/NAME:TYPE, OWNER/NAME:FILE.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mr::hub {

// Where `millrace pull` asks unless another hub is named. The only address of a machine in the
// program.
inline constexpr std::string_view kUsualHub = "https://huggingface.co";

struct Reference {
    std::string owner, name;
    std::string what;  // a type of weights (Q4_K_M) or a file of the repository; empty: the usual

    std::string id() const { return owner + "/" + name; }
    std::string text() const { return what.empty() ? id() : id() + ":" + what; }
};

// Empty where the text cannot be such a name. Owner and name never have a '/', nor are they a
// hidden or parent folder, so both can be parts of a path.
std::optional<Reference> read_reference(std::string_view text);

struct Address {
    Reference model;
    std::string revision;  // empty: the address names none
};

// The model in the address of its page, or of a file there: on the usual hub or on `hub`
// (https://HOST), else empty.
std::optional<Address> read_address(std::string_view text, std::string_view hub = {});

// Whether a path of a repository's file can be used below a folder: relative, without "..",
// without hidden folders or control characters. The list of files comes from outside.
bool is_safe_path(std::string_view path);

}  // namespace mr::hub
