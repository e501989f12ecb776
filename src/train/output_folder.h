// A folder that appears whole or not at all: filled under a temporary name beside its target,
// synced and renamed by commit(); anything else removes it. What a killed process left is removed
// by the next one that writes the same folder; a folder that it had moved away comes back.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace mr::train {

class OutputFolder {
  public:
    // What shows that the caller did not write a folder, or not all of it: "has 'x', ..."; else "".
    using Foreign = std::function<std::string(const std::filesystem::path& folder)>;

    // The target must not be there yet, or be empty; with `force` it may be a folder in which
    // `foreign` finds nothing, and is replaced. Throws Error (input).
    OutputFolder(const std::string& path, Foreign foreign, bool force);
    ~OutputFolder();
    OutputFolder(const OutputFolder&) = delete;
    OutputFolder& operator=(const OutputFolder&) = delete;

    // Where to write the file `name`. Files must be synced by who writes them (OutputFile does).
    std::string file(const std::string& name) const { return (temporary_ / name).string(); }
    void commit();

  private:
    bool has_something() const;
    void check() const;
    void replace();
    void clear_leftovers() const;
    [[noreturn]] void fail(std::string problem, std::string remedy = "check --out") const;

    std::filesystem::path target_, temporary_;
    Foreign foreign_;
    bool force_;
    bool committed_ = false;
};

// The folder that a killed process moved away from `path` and did not bring back; "": none.
std::string moved_away(const std::filesystem::path& path);

}  // namespace mr::train
