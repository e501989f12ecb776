// Any bytes as a tokenizer.json must give an mr::Error, or a tokenizer that encodes and decodes.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    constexpr std::string_view kText =
        "Hello, it's <s>12345</s> <|endoftext|>\n\n  na\xC3\xAFve e\xCC\x81 "
        "\xE6\x97\xA5\xFF\xF0\x9F";
    try {
        const auto tokenizer =
            mr::text::Tokenizer::from_json({reinterpret_cast<const char*>(data), size}, "fuzz");
        for (const bool special : {true, false}) {
            const auto ids = tokenizer->encode(kText, {.parse_special = special});
            for (const std::int32_t id : ids) {
                if (id < 0 || id >= tokenizer->vocab_size()) __builtin_trap();
                (void)tokenizer->display(id);
            }
            (void)tokenizer->decode(ids, special);
        }
    } catch (const mr::Error&) {
    }
    return 0;
}
