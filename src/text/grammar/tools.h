// Calls of tools in a plain form, for models that were trained on none:
//
//     {"name": "weather", "arguments": {"city": "Oslo"}}
//
// or, where several are allowed at once, a list of these.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "text/grammar/network.h"

namespace mr::text::grammar {

inline constexpr std::size_t kMostTools = 128;
inline constexpr std::uint32_t kMostCalls = 16;  // in one list

struct Tool {
    std::string name;
    formats::JsonValue parameters;  // a schema of an object; null: there are none
    std::string path;               // of the schema, for errors
};

// Of OpenAI's list: [{"type": "function", "function": {"name", "description", "parameters"}}].
// Throws Error with the path of what is wrong. As valid as the document.
std::vector<Tool> read_tools(formats::JsonValue tools, const std::string& path = "tools");
// Each is named by letters, digits, _ and -, at most 64, and none twice.
void check_tools(std::span<const Tool> tools, const std::string& path = "tools");

struct ToolChoice {
    bool required = false;  // else the model may answer with text instead
    std::string only{};     // the name of the tool to call; empty: any
    bool several = true;    // a list is allowed
};

// "auto", "required", {"type": "function", "function": {"name": ...}}; null is "auto". Nothing for
// "none".
std::optional<ToolChoice> read_tool_choice(formats::JsonValue choice, std::span<const Tool> tools,
                                           bool several, const std::string& path = "tool_choice");

// Between which a model writes each of its calls, on lines of their own: "<tool_call>" and
// "</tool_call>". Neither: in the plain form.
struct ToolForm {
    std::string open{}, close{};

    bool tagged() const { return !open.empty(); }
};

// Where calls are not required, a text is one too: one that begins with neither { nor [, or that
// comes before the first tag.
Network network_of_tools(std::span<const Tool> tools, const ToolChoice& choice,
                         const ToolForm& form = {});

}  // namespace mr::text::grammar
