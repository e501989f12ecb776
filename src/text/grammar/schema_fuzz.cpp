// Any bytes as a schema must give an mr::Error, or a grammar in which no text gets stuck.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "formats/json.h"
#include "text/grammar/schema.h"
#include "text/grammar/store.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    namespace grammar = mr::text::grammar;
    try {
        const auto document =
            mr::formats::JsonDocument::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
        const auto network = grammar::network_of_schema(document.root(), "fuzz");
        grammar::Store store(network);
        grammar::Store::Id state = store.start();
        std::uint32_t seed = static_cast<std::uint32_t>(size);
        for (int step = 0; step < 12; ++step) {
            if (!store.open(state)) {
                if (!store.complete(state)) __builtin_trap();
                break;
            }
            seed = seed * 1664525 + 1013904223;
            grammar::Store::Id next = grammar::Store::kDead;
            for (std::uint32_t i = 0; i < 256 && next == grammar::Store::kDead; ++i) {
                next = store.next(state, static_cast<std::uint8_t>((seed >> 24) + i));
            }
            if (next == grammar::Store::kDead) __builtin_trap();
            state = next;
        }
    } catch (const mr::Error&) {
    }
    return 0;
}
