// The data of a page that src/observe/page draws, and whether it has what the page's script reads.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace mr::test {

// The JSON inside of a page; null where there is none.
inline nlohmann::json page_data(const std::string& html) {
    const std::string begin = "<script type=\"application/json\" id=\"data\">";
    const std::size_t from = html.find(begin);
    if (from == std::string::npos) return nullptr;
    const std::size_t start = from + begin.size();
    return nlohmann::json::parse(html.substr(start, html.find("</script>", start) - start));
}

// Fields of `kind` by tests/page/report_fields.json, in `value` or in each of its elements.
inline void expect_fields(const nlohmann::json& fields, const std::string& kind,
                          const nlohmann::json& value) {
    if (value.is_array()) {
        for (const nlohmann::json& one : value) expect_fields(fields, kind, one);
        return;
    }
    for (const std::string name : fields.at(kind).at("needs")) {
        EXPECT_TRUE(value.contains(name)) << kind << " lacks " << name << ": " << value;
    }
    if (!fields.at(kind).contains("parts")) return;
    for (const auto& [name, part] : fields.at(kind).at("parts").items()) {
        if (value.contains(name)) expect_fields(fields, part, value.at(name));
    }
}

// The data of a page, checked.
inline nlohmann::json checked_page(const std::string& html) {
    EXPECT_TRUE(html.starts_with("<!doctype html>"));
    EXPECT_TRUE(html.ends_with("</html>\n"));
    EXPECT_NE(html.find("default-src 'none'; script-src 'sha256-"), std::string::npos);
    const nlohmann::json data = page_data(html);
    const nlohmann::json fields =
        nlohmann::json::parse(std::ifstream(MR_SOURCE_DIR "/tests/page/report_fields.json"));
    expect_fields(fields, "data", data);
    for (const nlohmann::json& section : data.at("sections")) {
        expect_fields(fields, section.at("kind"), section);
    }
    return data;
}

// The first section of a kind, with a title if one is given; null where there is none.
inline nlohmann::json section_of(const nlohmann::json& data, const std::string& kind,
                                 const std::string& title = "") {
    for (const nlohmann::json& section : data.at("sections")) {
        if (section.at("kind") == kind && (title.empty() || section.at("title") == title)) {
            return section;
        }
    }
    return nullptr;
}

inline std::size_t sections_of(const nlohmann::json& data, const std::string& kind) {
    std::size_t found = 0;
    for (const nlohmann::json& section : data.at("sections")) found += section.at("kind") == kind;
    return found;
}

inline std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
        ++found;
    }
    return found;
}

}  // namespace mr::test
