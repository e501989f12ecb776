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
#define MR_HEX "[0-9a-fA-F]{1,4}"
#define MR_UUID(version)                      \
    "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-" version \
    "[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$"
#define MR_BASE64 "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
// Of a duration: a number before a letter, and what may follow it.
#define MR_OF(letter, more) "[0-9]{1,9}" letter more
#define MR_SECONDS MR_OF("S", "")
#define MR_MINUTES MR_OF("M", "(?:" MR_SECONDS ")?")
#define MR_HOURS MR_OF("H", "(?:" MR_MINUTES ")?")
#define MR_CLOCK "T(?:" MR_HOURS "|" MR_MINUTES "|" MR_SECONDS ")"
#define MR_DAYS MR_OF("D", "")
#define MR_MONTHS MR_OF("M", "(?:" MR_DAYS ")?")
#define MR_YEARS MR_OF("Y", "(?:" MR_MONTHS ")?")
#define MR_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

constexpr std::string_view kAnyText = "[^]*";

struct StringFormat {
    std::string_view name, pattern;
};
constexpr StringFormat kFormats[] = {
    {"date", "^" MR_DATE "$"},
    {"time", "^" MR_TIME "$"},
    {"date-time", "^" MR_DATE "T" MR_TIME "$"},
    {"uuid", "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
    {"uuid1", MR_UUID("1")},
    {"uuid3", MR_UUID("3")},
    {"uuid4", MR_UUID("4")},
    {"uuid5", MR_UUID("5")},
    {"ipv4", "^(?:" MR_BYTE "\\.){3}" MR_BYTE "$"},
    // Of forms with an IPv4 address in them, those of mapped and compatible addresses.
    {"ipv6",
     "^(?:(?:" MR_HEX ":){7}" MR_HEX "|(?:" MR_HEX ":){1,7}:|(?:" MR_HEX ":){1,6}:" MR_HEX
     "|(?:" MR_HEX ":){1,5}(?::" MR_HEX "){2}|(?:" MR_HEX ":){1,4}(?::" MR_HEX "){3}|(?:" MR_HEX
     ":){1,3}(?::" MR_HEX "){4}|(?:" MR_HEX ":){1,2}(?::" MR_HEX "){5}|" MR_HEX ":(?::" MR_HEX
     "){6}|:(?::" MR_HEX "){1,7}|::|::(?:[fF]{4}:)?(?:" MR_BYTE "\\.){3}" MR_BYTE ")$"},
    {"hostname", "^" MR_LABEL "(?:\\." MR_LABEL "){0,7}$"},
    // A subset of the standard: no quotes, no comments, no IP addresses.
    {"email", "^[A-Za-z0-9_+-]+(?:\\.[A-Za-z0-9_+-]+)*@" MR_LABEL "(?:\\." MR_LABEL "){1,7}$"},
    // A scheme, then any characters allowed in a URI.
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]+$"},
    {"duration",
     "^P(?:[0-9]{1,9}W|(?:" MR_YEARS "|" MR_MONTHS "|" MR_DAYS ")(?:" MR_CLOCK ")?|" MR_CLOCK ")$"},
    {"json-pointer", "^(?:/(?:[^~/]|~[01])*)*$"},
    {"byte", MR_BASE64},
    {"base64", MR_BASE64},
    // These say how a string is used or shown.
    {"password", kAnyText},
    {"binary", kAnyText},
    {"path", kAnyText},
    {"file-path", kAnyText},
    {"directory-path", kAnyText},
};

#undef MR_DATE
#undef MR_TIME
#undef MR_BYTE
#undef MR_LABEL
#undef MR_HEX
#undef MR_UUID
#undef MR_BASE64
#undef MR_OF
#undef MR_SECONDS
#undef MR_MINUTES
#undef MR_HOURS
#undef MR_CLOCK
#undef MR_DAYS
#undef MR_MONTHS
#undef MR_YEARS

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
