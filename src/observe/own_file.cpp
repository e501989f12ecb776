#include "observe/own_file.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "core/error.h"

namespace mr::observe {
namespace {

constexpr std::size_t kLookedAt = 1000;  // bytes

}  // namespace

void require_own_file(const std::string& path, const ReportMark& mark) {
    std::error_code code;  // what cannot be looked at is reported by the writer
    if (!std::filesystem::is_regular_file(path, code)) return;
    if (std::filesystem::file_size(path, code) == 0 && !code) return;
    std::ifstream file(path, std::ios::binary);
    std::string head(kLookedAt, '\0');
    file.read(head.data(), static_cast<std::streamsize>(head.size()));
    head.resize(static_cast<std::size_t>(file.gcount()));
    if (head.starts_with(mark.begins) && head.find(mark.has) != head.npos) return;
    throw Error::usage(
        {.file = path,
         .problem = "this file exists and is not a report of millrace: it is not replaced",
         .remedy = "give another name, or remove it"});
}

}  // namespace mr::observe
