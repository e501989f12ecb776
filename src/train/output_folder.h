// A folder that appears whole or not at all: filled under a temporary name beside its target,
// synced and renamed by commit(); anything else removes it. What a killed process left is removed
// by the next one that writes the same folder.
#pragma once

#include <filesystem>
#include <string>

namespace mr::train {

class OutputFolder {
  public:
    // The target must not be there yet, or be empty; with `force` it may be a folder that has a
    // file `mark`, and is replaced. Throws Error (input).
    OutputFolder(const std::string& path, std::string mark, bool force);
    ~OutputFolder();
    OutputFolder(const OutputFolder&) = delete;
    OutputFolder& operator=(const OutputFolder&) = delete;

    // Where to write the file `name`. Files must be synced by who writes them (OutputFile does).
    std::string file(const std::string& name) const { return (temporary_ / name).string(); }
    void commit();

  private:
    bool has_something() const;
    void check() const;
    void remove_leftovers() const;
    [[noreturn]] void fail(std::string problem, std::string remedy = "check --out") const;

    std::filesystem::path target_, temporary_;
    std::string mark_;
    bool force_;
    bool committed_ = false;
};

}  // namespace mr::train
