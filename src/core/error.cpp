#include "core/error.h"

#include <fmt/format.h>

#include "core/printable.h"

namespace mr {
namespace {

constexpr std::size_t kMostBytes = 400;  // per part

// Forces one line: names and values come from files and may hold anything.
std::string one_line(const std::string& text) { return printable(text, kMostBytes); }

std::string describe(const ErrorInfo& info) {
    std::string out;
    if (!info.file.empty()) out += one_line(info.file) + ": ";
    if (!info.field.empty()) {
        out += one_line(info.field);
        if (!info.value.empty()) out += " = " + one_line(info.value);
        out += ": ";
    } else if (!info.value.empty()) {
        out += one_line(info.value) + ": ";
    }
    out += one_line(info.problem);
    if (!info.remedy.empty()) out += "; " + one_line(info.remedy);
    return out;
}

}  // namespace

Error::Error(ErrorKind kind, ErrorInfo info)
    : std::runtime_error(describe(info)), kind_(kind), info_(std::move(info)) {}

void contract_failed(const char* condition, const char* contract, const char* file, int line) {
    throw ContractError(fmt::format("{}:{}: {} (failed: {})", file, line, contract, condition));
}

}  // namespace mr
