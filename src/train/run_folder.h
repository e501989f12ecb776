// The folder of a training run, made and locked before its content is read: of two processes
// started at once in one folder, only one continues.
//   lock, checkpoints/ (checkpoint.h), metrics.jsonl, report.html
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mr::train {

inline constexpr const char* kMetricsName = "metrics.jsonl";
inline constexpr const char* kReportName = "report.html";

class RunFolder {
  public:
    // For a new run: the folder is made, or is empty, or belongs to a run that ended before its
    // first checkpoint. Throws Error for any other: usage if there is a run, input if there is
    // something that a run did not write.
    static RunFolder create(const std::string& path) { return {path, true}; }
    // To resume the run in it.
    static RunFolder open(const std::string& path) { return {path, false}; }
    // Unlocks the folder. What create() made is removed, unless keep() was called.
    ~RunFolder();
    RunFolder(const RunFolder&) = delete;
    RunFolder& operator=(const RunFolder&) = delete;

    const std::string& path() const { return path_; }
    // The run begins: from now on the folder stays in any case.
    void keep() { keep_ = true; }

  private:
    RunFolder(const std::string& path, bool is_new);
    void make_folders();
    void lock();
    void check_new() const;
    void leave();

    std::string path_;
    std::vector<std::filesystem::path> made_;  // outermost first
    bool made_lock_ = false;
    bool keep_ = false;
    int fd_ = -1;
};

}  // namespace mr::train
