// The folder of a training run, made and locked before anything in it is looked at: two processes
// that are started at once in one folder cannot both go on.
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
    // For a new run: the folder is made, or is empty, or is that of a run that ended before its
    // first checkpoint. Throws Error for any other: usage where there is a run, input where there
    // is something that a run did not write.
    static RunFolder create(const std::string& path) { return {path, true}; }
    // To go on with the run in it.
    static RunFolder open(const std::string& path) { return {path, false}; }
    // Lets others train here. What create() made is removed, unless keep() was called.
    ~RunFolder();
    RunFolder(const RunFolder&) = delete;
    RunFolder& operator=(const RunFolder&) = delete;

    const std::string& path() const { return path_; }
    // The run begins: from now on the folder stays whatever happens.
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
