// Tool calls in a plain form, for models that were not trained on any:
//
//     {"name": "weather", "arguments": {"city": "Oslo"}}
//
// or, if several calls are allowed at once, a list of these.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "text/grammar/network.h"
#include "text/grammar/response_format.h"

namespace mr::text::grammar {

inline constexpr std::size_t kMostTools = 128;
inline constexpr std::uint32_t kMostCalls = 16;  // in one list

struct Tool {
    std::string name;
    formats::JsonValue parameters;  // the schema of an object; null: no parameters
    std::string path;               // path of the schema, for errors
};

// From OpenAI's list: [{"type": "function", "function": {"name", "description", "parameters"}}].
// Throws Error with the path of the fault. The result refers to the document.
std::vector<Tool> read_tools(formats::JsonValue tools, const std::string& path = "tools");
// Checks names: letters, digits, _ and -, at most 64 characters, and none twice.
void check_tools(std::span<const Tool> tools, const std::string& path = "tools");

struct ToolChoice {
    bool required = false;  // otherwise the model may answer with text
    std::string only{};     // the name of the tool to call; empty: any
    bool several = true;    // a list is allowed
};

// "auto", "required", {"type": "function", "function": {"name": ...}}; null means "auto". Empty for
// "none".
std::optional<ToolChoice> read_tool_choice(formats::JsonValue choice, std::span<const Tool> tools,
                                           bool several, const std::string& path = "tool_choice");

// The tags around each call, on lines of their own: "<tool_call>" and "</tool_call>". Both empty:
// the plain form.
struct ToolForm {
    std::string open{}, close{};
    // The names of the tools, where a text without calls is in a format: such a text begins as none
    // of their calls, and none stands before calls.
    std::vector<std::string> names{};

    bool tagged() const { return !open.empty(); }
    bool formatted() const { return !names.empty(); }
};

// If calls are not required, text is accepted, too: text that begins with neither { nor [, or that
// comes before the first tag. With a format: a text of that format, in place of calls. Throws Error
// where such a text could begin as a call; of any object, those are left out that have "arguments".
Network network_of_tools(std::span<const Tool> tools, const ToolChoice& choice,
                         const ToolForm& form = {}, const TextFormat& format = {});

}  // namespace mr::text::grammar
