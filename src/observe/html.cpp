#include "observe/html.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/output_file.h"
#include "observe/report_page.h"

namespace mr::observe {

std::string html_escaped(std::string_view text) {
    using Json = nlohmann::json;
    // The JSON writer knows what is UTF-8; its way of saying so is undone again.
    const std::string valid =
        Json::parse(Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace));
    std::string out;
    for (const char c : valid) {
        switch (c) {
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '&':
                out += "&amp;";
                break;
            case '"':
                out += "&quot;";
                break;
            case '\'':
                out += "&#39;";
                break;
            default:
                const auto code = static_cast<unsigned char>(c);
                if ((code < 0x20 && c != '\n' && c != '\t') || code == 0x7f) {
                    out += "\xef\xbf\xbd";
                } else {
                    out += c;
                }
        }
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
