// A folder that appears whole or not at all: filled under a temporary name beside its target,
// synced and renamed by commit(); otherwise it is removed. The next process that writes the same
// folder removes what a killed process left, and moves back a folder that it had moved away.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace mr {

// A folder under a temporary name, which is removed unless it is renamed to its target.
class PartialFolder {
  public:
    // Makes the folder; removes an old one of that name. Throws Error (input), which names the
    // target.
    PartialFolder(std::filesystem::path path, const std::filesystem::path& target);
    ~PartialFolder();
    PartialFolder(const PartialFolder&) = delete;
    PartialFolder& operator=(const PartialFolder&) = delete;

    const std::filesystem::path& path() const { return path_; }
    // The target must not exist, or be empty. Throws Error (input).
    void put(const std::filesystem::path& target);

  private:
    std::filesystem::path path_;
    bool placed_ = false;
    int lock_ = -1;  // held while the folder is being filled
};

// Exchanges two folders, so that no moment is without either; false: the file system cannot.
bool exchange_folders(const std::filesystem::path& a, const std::filesystem::path& b);

// Removes what killed processes left beside `target` under the name of a PartialFolder:
// partial_name().
void remove_partial_folders(const std::filesystem::path& target);
std::filesystem::path partial_name(const std::filesystem::path& target);

class OutputFolder {
  public:
    // Signs that the caller did not write a folder, or not all of it: "has 'x', ..."; else "".
    using Foreign = std::function<std::string(const std::filesystem::path& folder)>;

    // The target must not exist, or be empty; with `force` it may be a folder in which `foreign`
    // finds nothing, which is replaced. Throws Error (input).
    OutputFolder(const std::string& path, Foreign foreign, bool force);
    // The path for the file `name`. The writer must sync it (OutputFile does).
    std::string file(const std::string& name) const { return (partial_->path() / name).string(); }
    void commit();

  private:
    bool has_something() const;
    void check() const;
    void replace();
    void clear_leftovers() const;
    [[noreturn]] void fail(std::string problem, std::string remedy = "give another folder") const;

    std::filesystem::path target_;
    Foreign foreign_;
    bool force_;
    std::optional<PartialFolder> partial_;
};

// The folder that a killed process moved away from `path` and did not move back; "": none.
std::string moved_away(const std::filesystem::path& path);

}  // namespace mr
