// The one exception type for errors a user can cause, and checks for programmer errors.
#pragma once

#include <stdexcept>
#include <string>

namespace mr {

// The kinds are the exit codes of the command line.
enum class ErrorKind { input = 1, usage = 2, device = 3 };

// What went wrong, in the order in which it is printed: "FILE: FIELD = VALUE: PROBLEM; REMEDY".
// `problem` is required; leave out what does not apply.
struct ErrorInfo {
    std::string file{};
    std::string field{};
    std::string value{};
    std::string problem{};
    std::string remedy{};
};

class Error : public std::runtime_error {
  public:
    Error(ErrorKind kind, ErrorInfo info);

    static Error input(ErrorInfo info) { return {ErrorKind::input, std::move(info)}; }
    static Error usage(ErrorInfo info) { return {ErrorKind::usage, std::move(info)}; }
    static Error device(ErrorInfo info) { return {ErrorKind::device, std::move(info)}; }

    ErrorKind kind() const { return kind_; }
    int exit_code() const { return static_cast<int>(kind_); }
    const ErrorInfo& info() const { return info_; }

  private:
    ErrorKind kind_;
    ErrorInfo info_;
};

// A broken contract between parts of the program: a bug, never a user's mistake.
class ContractError : public std::logic_error {
    using std::logic_error::logic_error;
};

[[noreturn]] void contract_failed(const char* condition, const char* contract, const char* file,
                                  int line);

}  // namespace mr

// MR_CHECK(condition, "what the caller promised").
#define MR_CHECK(condition, contract)                                        \
    do {                                                                     \
        if (!(condition)) [[unlikely]]                                       \
            ::mr::contract_failed(#condition, contract, __FILE__, __LINE__); \
    } while (false)
