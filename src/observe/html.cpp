#include "observe/html.h"

#include <fmt/format.h>

#include "core/output_file.h"
#include "core/utf8.h"
#include "observe/report_page.h"

namespace mr::observe {
namespace {

const char* entity_of(char32_t code) {
    switch (code) {
        case '<':
            return "&lt;";
        case '>':
            return "&gt;";
        case '&':
            return "&amp;";
        case '"':
            return "&quot;";
        case '\'':
            return "&#39;";
        default:
            return nullptr;
    }
}

}  // namespace

std::string html_escaped(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size();) {
        const Utf8Char c = utf8_at(text, i);
        const bool control = c.code < 0x20 && c.code != '\n' && c.code != '\t';
        if (!c.valid || control || c.code == 0x7f) {
            out += "\xef\xbf\xbd";
        } else if (const char* entity = entity_of(c.code)) {
            out += entity;
        } else {
            out += text.substr(i, c.size);
        }
        i += c.size;
    }
    return out;
}

std::string html_begin(std::string_view title) {
    std::string html =
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n";
    return html + fmt::format("<title>millrace: {}</title>\n<style>{}</style>\n</head>\n<body>\n",
                              html_escaped(title), kPageStyle);
}

std::string plan_html(const MemoryPlan& plan, std::uint64_t taken) {
    std::string html = "<h2>Memory plan</h2>\n<table><tr><th>what<th>bytes</tr>\n";
    for (const MemoryPlan::Item& item : plan.items()) {
        html += fmt::format("<tr><td>{}<td>{}</tr>\n", html_escaped(item.name),
                            format_bytes(item.bytes));
    }
    html += fmt::format("<tr class=\"sum\"><td>in all<td>{}</tr>\n", format_bytes(plan.total()));
    if (taken > 0) {
        html +=
            fmt::format("<tr><td>taken, by the driver's account<td>{}</tr>\n", format_bytes(taken));
    }
    return html + "</table>\n";
}

void write_page(const std::string& path, std::string_view html) {
    OutputFile file(path);
    file.write(html);
    file.commit();
}

}  // namespace mr::observe
