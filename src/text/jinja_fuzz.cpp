// Any bytes as a chat template must give an mr::Error, or a text within its limits whose marks are
// in order. The last byte chooses the template's input.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "text/jinja/template.h"
#include "text/jinja/value_json.h"

namespace {

using mr::text::jinja::Value;

constexpr std::string_view kMessages =
    R"([{"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi <|im_end|> \u65e5\u672c"},
        {"role": "assistant", "content": "<think>\nx\n</think>\n\nHello", "tool_calls":
          [{"id": "abcdef123", "function": {"name": "f", "arguments": {"a": [1, 2.5, null, true]}}}]},
        {"role": "tool", "content": "{}", "tool_call_id": "abcdef123"},
        {"role": "user", "content": ""}])";
constexpr std::string_view kTools =
    R"([{"type": "function", "function": {"name": "f", "description": "d", "parameters":
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}}}])";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    namespace jinja = mr::text::jinja;
    const std::string_view source(reinterpret_cast<const char*>(data), size);
    const unsigned char choice = size > 0 ? data[size - 1] : 0;
    jinja::Variables variables = {{"messages", jinja::value_of_json(kMessages, true)},
                                  {"add_generation_prompt", (choice & 1) != 0},
                                  {"bos_token", Value::text("<s>")},
                                  {"eos_token", Value::text("</s>")}};
    if (choice & 2) variables.emplace_back("tools", jinja::value_of_json(kTools, true));
    jinja::RenderOptions options{.now = std::tm{}};
    options.limits.steps = 200'000;
    options.limits.made = 4u << 20;
    options.limits.output = 1u << 20;
    try {
        const jinja::Template parsed(source, "fuzz");
        const jinja::MarkedText text = parsed.render(variables, options);
        if (text.size() > options.limits.output) __builtin_trap();
        std::size_t end = 0;
        for (const mr::text::LiteralRange& range : text.user()) {
            if (range.begin < end || range.end <= range.begin || range.end > text.size()) {
                __builtin_trap();
            }
            end = range.end;
        }
    } catch (const mr::Error&) {
    }
    return 0;
}
