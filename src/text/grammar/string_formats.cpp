#include "text/grammar/string_formats.h"

namespace mr::text::grammar {
namespace {

// February has 29 days in every year.
#define MR_DATE                                                                         \
    "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]" \
    "|[12][0-9]|30)|02-(?:0[1-9]|[12][0-9]))"
// RFC 3339, without leap seconds.
#define MR_TIME                                             \
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]" \
    "{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define MR_BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define MR_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

struct StringFormat {
    std::string_view name, pattern;
};
constexpr StringFormat kFormats[] = {
    {"date", "^" MR_DATE "$"},
    {"time", "^" MR_TIME "$"},
    {"date-time", "^" MR_DATE "T" MR_TIME "$"},
    {"uuid", "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
    {"ipv4", "^(?:" MR_BYTE "\\.){3}" MR_BYTE "$"},
    {"hostname", "^" MR_LABEL "(?:\\." MR_LABEL "){0,7}$"},
    // A subset of the standard: no quotes, no comments, no IP addresses.
    {"email", "^[A-Za-z0-9_+-]+(?:\\.[A-Za-z0-9_+-]+)*@" MR_LABEL "(?:\\." MR_LABEL "){1,7}$"},
    // A scheme, then any characters allowed in a URI.
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]+$"},
};

#undef MR_DATE
#undef MR_TIME
#undef MR_BYTE
#undef MR_LABEL

}  // namespace

std::string_view pattern_of_format(std::string_view format) {
    for (const auto& [name, pattern] : kFormats) {
        if (name == format) return pattern;
    }
    return {};
}

std::string supported_formats() {
    std::string out;
    for (const auto& [name, pattern] : kFormats) {
        if (!out.empty()) out += ", ";
        out += name;
    }
    return out;
}

}  // namespace mr::text::grammar
