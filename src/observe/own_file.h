// Files that a report may replace: an earlier report. Any other file of that name, such as the
// model itself, is kept.
#pragma once

#include <string>
#include <string_view>

namespace mr::observe {

// What tells a report's file: how it begins, and what it has soon after.
struct ReportMark {
    std::string_view begins, has;
};
inline constexpr ReportMark kPageMark{"<!doctype html>", "<title>millrace</title>"};
inline constexpr ReportMark kTraceMark{"{\"displayTimeUnit\": \"ms\",\n\"otherData\": ", ""};

// Throws Error (usage) if `path` is a file with content that is not so marked, or that cannot be
// read.
void require_own_file(const std::string& path, const ReportMark& mark);

}  // namespace mr::observe
