// A folder that appears whole or not at all: filled under a temporary name beside its target,
// synced and renamed by commit(); anything else removes it. What a killed process left is removed
// by the next one that writes the same folder; a folder that it had moved away comes back.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace mr::train {

// A folder under a temporary name, which goes away again unless it is put in its place.
class PartialFolder {
  public:
    // Made, and what had that name is removed. These throw Error (input).
    explicit PartialFolder(std::filesystem::path path);
    ~PartialFolder();
    PartialFolder(const PartialFolder&) = delete;
    PartialFolder& operator=(const PartialFolder&) = delete;

    const std::filesystem::path& path() const { return path_; }
    void put(const std::filesystem::path& target);  // which must not be there, or be empty

  private:
    std::filesystem::path path_;
    bool placed_ = false;
    int lock_ = -1;  // held as long as it is being filled
};

class OutputFolder {
  public:
    // What shows that the caller did not write a folder, or not all of it: "has 'x', ..."; else "".
    using Foreign = std::function<std::string(const std::filesystem::path& folder)>;

    // The target must not be there yet, or be empty; with `force` it may be a folder in which
    // `foreign` finds nothing, and is replaced. Throws Error (input).
    OutputFolder(const std::string& path, Foreign foreign, bool force);
    // Where to write the file `name`. Files must be synced by who writes them (OutputFile does).
    std::string file(const std::string& name) const { return (partial_->path() / name).string(); }
    void commit();

  private:
    bool has_something() const;
    void check() const;
    void replace();
    void clear_leftovers() const;
    [[noreturn]] void fail(std::string problem, std::string remedy = "check --out") const;

    std::filesystem::path target_;
    Foreign foreign_;
    bool force_;
    std::optional<PartialFolder> partial_;
};

// The folder that a killed process moved away from `path` and did not bring back; "": none.
std::string moved_away(const std::filesystem::path& path);

}  // namespace mr::train
