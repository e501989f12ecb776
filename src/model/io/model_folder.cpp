#include "model/io/model_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/output_file.h"
#include "model/io/tokenizer_companions.h"

namespace mr::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModelFiles[] = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
};

// "model-00001-of-00002.safetensors" and the like.
bool is_shard(std::string_view name, std::string_view stem, std::string_view extension) {
    if (!name.starts_with(stem) || !name.ends_with(extension)) return false;
    name.remove_prefix(stem.size());
    name.remove_suffix(std::min(name.size(), extension.size()));
    return name.empty() || (name.starts_with("-") && name.find("-of-") != name.npos);
}

bool same_owner(const struct stat& a, const struct stat& b) {
    return a.st_uid == b.st_uid && a.st_gid == b.st_gid;
}

// Whether a folder beside `target` may take its place.
bool may_exchange(const fs::path& target) {
    struct stat own {};
    struct stat beside {};
    const fs::path parent = target.parent_path();
    if (::stat(target.c_str(), &own) != 0 || ::stat(parent.c_str(), &beside) != 0) return false;
    if (own.st_dev != beside.st_dev || ::access(parent.c_str(), W_OK | X_OK) != 0) return false;
    // A mount of the same device: the kernel does not rename it.
    struct statx mount {};
    if (::statx(AT_FDCWD, target.c_str(), 0, STATX_TYPE, &mount) == 0 &&
        (mount.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0) {
        return false;
    }
    // Whoever stands in a folder stays in the old one.
    std::error_code code;
    return !fs::equivalent(target, fs::current_path(code), code) && !code;
}

}  // namespace

bool is_read_beside_weights(const std::string& name) {
    return name == "config.json" || name == "generation_config.json" || name == "tokenizer.json" ||
           std::ranges::find(kTokenizerCompanions, name) != std::end(kTokenizerCompanions);
}

bool is_model_file(const std::string& name) {
    return is_shard(name, "model", ".safetensors") || is_shard(name, "pytorch_model", ".bin") ||
           name == "model.safetensors.index.json" || name == "pytorch_model.bin.index.json" ||
           std::ranges::find(kModelFiles, name) != std::end(kModelFiles);
}

FolderFiles folder_files(const fs::path& folder) {
    FolderFiles out;
    std::error_code code;
    for (auto it = fs::directory_iterator(folder, code); !code && it != fs::directory_iterator();
         it.increment(code)) {
        std::error_code ignored;
        const std::string name = it->path().filename().string();
        if (it->symlink_status(ignored).type() == fs::file_type::directory) {
            out.has_folders = true;
        } else if (name.find(kPartialMark) == name.npos) {
            (is_model_file(name) ? out.model : out.others).push_back(name);
        }
    }
    std::ranges::sort(out.model);
    std::ranges::sort(out.others);
    return out;
}

FolderSwap::FolderSwap(fs::path target, bool replaces)
    : target_(std::move(target)), replaces_(replaces), partial_(partial_name(target_), target_) {}

std::unique_ptr<FolderSwap> FolderSwap::make(const fs::path& target) {
    std::error_code code;
    const bool replaces = fs::exists(target, code);
    if (replaces && !fs::is_directory(target, code)) {
        throw Error::input({.file = target.string(),
                            .problem = "is a file, not a folder",
                            .remedy = "give another name for the output"});
    }
    fs::path path =
        replaces ? fs::canonical(target, code) : fs::weakly_canonical(fs::absolute(target), code);
    if (!path.has_filename()) path = path.parent_path();
    if (code || path.filename().empty()) return nullptr;
    remove_partial_folders(path);
    if (!replaces) return std::unique_ptr<FolderSwap>(new FolderSwap(path, false));
    if (folder_files(path).has_folders || !may_exchange(path)) return nullptr;
    std::unique_ptr<FolderSwap> out;
    try {
        out.reset(new FolderSwap(path, true));
    } catch (const Error&) {
        return nullptr;
    }
    struct stat old {};
    struct stat made {};
    if (::stat(path.c_str(), &old) != 0 || ::stat(out->folder().c_str(), &made) != 0) {
        return nullptr;
    }
    if (!same_owner(old, made) && ::chown(out->folder().c_str(), old.st_uid, old.st_gid) != 0) {
        return nullptr;
    }
    if (::chmod(out->folder().c_str(), old.st_mode & 07777) != 0) return nullptr;
    {  // asks whether the file system can exchange two
        const PartialFolder one(out->folder() / "one", path), other(out->folder() / "other", path);
        if (!exchange_folders(one.path(), other.path())) return nullptr;
    }
    return out->take_others() ? std::move(out) : nullptr;
}

// Links the others into the new folder. False: one could not be.
bool FolderSwap::take_others() {
    for (const std::string& name : folder_files(target_).others) {
        struct stat here {};
        struct stat there {};
        const fs::path link = folder() / name;
        if (::lstat((target_ / name).c_str(), &there) != 0) continue;  // it is gone
        if (::lstat(link.c_str(), &here) == 0) {
            if (here.st_ino == there.st_ino) continue;
            if (::unlink(link.c_str()) != 0) return false;  // it was written anew
        }
        if (::linkat(AT_FDCWD, (target_ / name).c_str(), AT_FDCWD, link.c_str(), 0) != 0) {
            return false;
        }
    }
    return true;
}

void FolderSwap::commit() {
    const auto fail = [&](const char* problem) {
        throw Error::input({.file = target_.string(),
                            .problem = problem,
                            .remedy = "it is as it was; give another folder"});
    };
    sync_path(folder().string());
    if (!replaces_) {
        partial_.put(target_);
    } else {
        // What came while the weights were written.
        const FolderFiles now = folder_files(target_);
        for (const std::string& name : now.model) {  // a private file stays one
            struct stat old {};
            const fs::path made = folder() / name;
            if (::stat((target_ / name).c_str(), &old) != 0 || ::access(made.c_str(), F_OK) != 0) {
                continue;
            }
            if (::chmod(made.c_str(), old.st_mode & 07777) != 0) fail("a file cannot be protected");
        }
        if (now.has_folders || !take_others()) fail("the folder was changed meanwhile");
        if (!exchange_folders(folder(), target_)) fail("the folder cannot be replaced");
    }
    sync_path(target_.parent_path().string());
}

}  // namespace mr::model
