// The folder of a training run, made and locked before its content is read: of two processes
// started at once in one folder, only one continues.
//   lock, checkpoints/ (checkpoint.h), metrics.jsonl, report.html
// It is held by descriptor: a run whose folder is moved goes on in that folder, whatever has its
// old name by then.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/error.h"

namespace mr::train {

inline constexpr const char* kMetricsName = "metrics.jsonl";
inline constexpr const char* kReportName = "report.html";

// The folder was removed, or another process has its lock: the run cannot go on.
struct LostFolder : Error {
    using Error::Error;
};

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

    // The run begins: from now on the folder stays in any case.
    void keep() { keep_ = true; }
    // A path that leads to this folder under any name; not for messages. Without /proc it is the
    // name that was given.
    const std::string& at() const { return at_; }
    // The name that was given, or if the folder was moved, the one that it has now.
    std::string name() const;
    // Before every write: throws LostFolder if the folder is not this process's any more. If only
    // the lock file was removed, makes it anew.
    void require_own();

  private:
    RunFolder(const std::string& path, bool is_new);
    void make_folders();
    void lock();
    bool relock();
    bool still_there() const;
    void check_new() const;
    void unlock();
    void leave();

    std::string path_, at_;
    std::vector<std::filesystem::path> made_;  // outermost first
    bool made_lock_ = false;
    bool keep_ = false;
    int folder_ = -1, lock_ = -1;  // descriptors
};

}  // namespace mr::train
