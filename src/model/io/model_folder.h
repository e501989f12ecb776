// The folder of a Hugging Face model, replaced as one. Internal to convert.cpp.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/output_folder.h"

namespace mr::model {

// Names in a folder: the files that make up a model, and others, which are somebody's own.
struct FolderFiles {
    std::vector<std::string> model, others;  // sorted
    bool has_folders = false;
};
FolderFiles folder_files(const std::filesystem::path& folder);
// Whether a file of a model has this name: config.json, weights, tokenizer, advice.
bool is_model_file(const std::string& name);
// Whether it is read with weights that are named by their own path.
bool is_read_beside_weights(const std::string& name);

// A new folder beside `target`, which takes its place in one step. The files of an older model do
// not outlive it; all others are in both folders while there are two.
class FolderSwap {
  public:
    // Null: the folder cannot be exchanged. It is the working directory, has folders in it, is a
    // mount, or belongs to somebody else; or the file system has no such operation, or no hard
    // links. Throws Error if a new folder cannot be made where there is none.
    static std::unique_ptr<FolderSwap> make(const std::filesystem::path& target);

    const std::filesystem::path& folder() const { return partial_.path(); }
    void commit();

  private:
    FolderSwap(std::filesystem::path target, bool replaces);
    bool take_others();

    std::filesystem::path target_;
    bool replaces_;
    PartialFolder partial_;
};

}  // namespace mr::model
