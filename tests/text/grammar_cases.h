// Shared by the tests of grammars.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "core/error.h"
#include "formats/json.h"
#include "text/grammar/schema.h"
#include "text/grammar/store.h"

namespace mr::text::grammar {

inline formats::JsonDocument json(std::string_view text) {
    return formats::JsonDocument::parse(text, "a test", {}, {.depth = 200});
}

inline Network compiled(std::string_view schema) {
    const auto document = json(schema);
    return network_of_schema(document.root(), "schema");
}

// Each of `good`, and none of `bad`, is a text of the schema.
inline void expect_texts(std::string_view schema, std::initializer_list<std::string_view> good,
                         std::initializer_list<std::string_view> bad) {
    SCOPED_TRACE(schema);
    const Network network = compiled(schema);
    for (const std::string_view text : good) EXPECT_TRUE(matches(network, text)) << text;
    for (const std::string_view text : bad) EXPECT_FALSE(matches(network, text)) << text;
}

// The schema is refused, with `part` in the error.
inline void expect_refused(std::string_view schema, std::string_view field, std::string_view part) {
    SCOPED_TRACE(schema.substr(0, 200));
    try {
        compiled(schema);
        ADD_FAILURE() << "was not refused";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input);
        EXPECT_EQ(error.info().field, field) << error.what();
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
}

}  // namespace mr::text::grammar
