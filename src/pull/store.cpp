#include "pull/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/terminal.h"
#include "core/error.h"
#include "core/output_file.h"
#include "hub/cache.h"
#include "pull/digest.h"

namespace mr::pull {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse_write(const fs::path& path, const char* action, int code) {
    const bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
    throw Error::input(
        {.file = path.string(),
         .problem = fmt::format("cannot be {}: {}", action, std::strerror(code)),
         .remedy = full ? "make room, then give the same command again: it continues where it ended"
                        : "check the permissions of the folder, or name another with --cache"});
}

void make_folders(const fs::path& path) {
    std::error_code code;
    fs::create_directories(path, code);
    if (code) refuse_write(path, "created", code.value());
}

int open_file(const fs::path& path, int flags) {
    const int fd = ::open(path.c_str(), flags | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) refuse_write(path, "opened", errno);
    return fd;
}

// The lock of huggingface_hub: the file stays, an flock on it is the lock. Its kernel releases it
// when a process dies.
class BlobLock {
  public:
    BlobLock(const fs::path& path, const std::string& name, Meter& meter)
        : fd_(open_file(path, O_RDWR)) {
        if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
        if (errno == EWOULDBLOCK) {
            waited_ = true;
            meter.remove();
            cli::err(fmt::format("{} is being downloaded by another process: waiting for it\n",
                                 cli::one_line(name)));
        }
        while (::flock(fd_, LOCK_EX) != 0) {
            const int code = errno;
            if (code == EINTR && !cli::InterruptGuard::pending()) continue;
            ::close(fd_);
            if (code == EINTR) throw cli::Interrupted{};
            refuse_write(path, "locked", code);
        }
    }
    ~BlobLock() { ::close(fd_); }
    BlobLock(const BlobLock&) = delete;
    BlobLock& operator=(const BlobLock&) = delete;

    // Another process had it, and may have brought the file.
    bool waited() const { return waited_; }

  private:
    int fd_;
    bool waited_ = false;
};

bool is_there(const fs::path& path, std::int64_t size) {
    std::error_code code;
    return fs::is_regular_file(path, code) &&
           fs::file_size(path, code) == static_cast<std::uintmax_t>(size) && !code;
}

Digest new_digest(const RemoteFile& file) {
    return file.sha256.empty() ? Digest::git_blob(static_cast<std::uint64_t>(file.size))
                               : Digest::sha256();
}

// Adds all bytes that the file holds; returns how many.
std::int64_t read_all(int fd, const fs::path& path, Digest& digest, Meter& meter) {
    std::error_code code;
    const auto size = std::max<std::uintmax_t>(1, fs::file_size(path, code));
    std::vector<char> piece(std::size_t{1} << 20);
    std::uint64_t done = 0;
    while (true) {
        if (cli::InterruptGuard::pending()) throw cli::Interrupted{};
        const ssize_t n = ::read(fd, piece.data(), piece.size());
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) refuse_write(path, "read", errno);
        if (n == 0) return static_cast<std::int64_t>(done);
        digest.add({piece.data(), static_cast<std::size_t>(n)});
        done += static_cast<std::uint64_t>(n);
        meter.idle(fmt::format("checking what is here {}%", 100 * done / size));
    }
}

}  // namespace

// The part of a file that has come so far, and the hash of it.
struct Store::Partial {
    Partial(fs::path at, const RemoteFile& of, Meter& meter)
        : path(std::move(at)), file(of), fd(open_file(path, O_RDWR)), digest(new_digest(of)) {
        try {
            size = read_all(fd, path, digest, meter);  // what another process left
        } catch (...) {
            ::close(fd);
            throw;
        }
    }
    ~Partial() { ::close(fd); }
    Partial(const Partial&) = delete;
    Partial& operator=(const Partial&) = delete;

    void append(std::string_view bytes) {
        digest.add(bytes);
        while (!bytes.empty()) {
            const ssize_t written = ::write(fd, bytes.data(), bytes.size());
            if (written < 0 && errno == EINTR) continue;
            if (written < 0) refuse_write(path, "written", errno);
            size += written;
            bytes.remove_prefix(static_cast<std::size_t>(written));
        }
    }
    void clear() {
        if (::ftruncate(fd, 0) != 0 || ::lseek(fd, 0, SEEK_SET) != 0) {
            refuse_write(path, "written", errno);
        }
        size = 0;
        digest = new_digest(file);
        etag.clear();
    }
    bool right() const { return !file.hashed() || digest.hex() == file.blob(); }

    fs::path path;
    const RemoteFile& file;
    int fd;
    Digest digest;
    std::int64_t size = 0;
    std::string etag;  // of the host that sent these bytes to this process; else empty
};

Store::Store(Http& http, hub::Reference model, fs::path cache, std::string commit, bool verify,
             Meter& meter)
    : http_(http),
      model_(std::move(model)),
      cache_(std::move(cache)),
      repository_(cache_ / hub::folder_name(model_)),
      commit_(std::move(commit)),
      verify_(verify),
      meter_(meter) {
    for (const fs::path& folder : {repository_ / "blobs", repository_ / "refs", snapshot(),
                                   cache_ / ".locks" / hub::folder_name(model_)}) {
        make_folders(folder);
    }
}

fs::path Store::blob(const RemoteFile& file) const { return repository_ / "blobs" / file.blob(); }

fs::path Store::partial(const RemoteFile& file) const {
    return repository_ / "blobs" / (file.blob() + ".incomplete");
}

bool Store::complete(const RemoteFile& file) {
    if (!is_there(blob(file), file.size)) return false;
    if (!verify_) return true;
    const auto [at, first] = verified_.try_emplace(file.blob(), false);
    if (first) at->second = file.hashed() && Partial(blob(file), file, meter_).right();
    return at->second;
}

std::uint64_t Store::missing(const RemoteFile& file) {
    if (complete(file)) return 0;
    std::error_code code;
    const auto have = fs::file_size(partial(file), code);
    const auto all = static_cast<std::uint64_t>(file.size);
    return code || have > all ? all : all - have;
}

void Store::fetch(const RemoteFile& file) {
    meter_.show(file.path);
    if (!complete(file)) {
        const fs::path lock =
            cache_ / ".locks" / hub::folder_name(model_) / (file.blob() + ".lock");
        const BlobLock locked(lock, file.path, meter_);
        if (locked.waited()) verified_.erase(file.blob());
        if (!complete(file)) {
            if (is_there(blob(file), file.size)) {
                meter_.remark(fmt::format("{} {}: it is downloaded again", cli::one_line(file.path),
                                          file.hashed() ? "is damaged" : "cannot be checked"));
            }
            Partial to(partial(file), file, meter_);
            download(file, to);
            if (::fsync(to.fd) != 0) refuse_write(to.path, "synced", errno);
            std::error_code code;
            fs::rename(to.path, blob(file), code);
            if (code) refuse_write(blob(file), "renamed into place", code.value());
            sync_path((repository_ / "blobs").string());
            verified_[file.blob()] = true;
        } else {
            meter_.found(static_cast<std::uint64_t>(file.size));
        }
    } else {
        meter_.found(static_cast<std::uint64_t>(file.size));
    }
    link(file);
}

void Store::download(const RemoteFile& file, Partial& to) {
    // Without a hash, nothing says whether the beginning belongs to the same content.
    if (to.size > file.size || !file.hashed()) to.clear();
    bool continued = to.size > 0;
    meter_.found(static_cast<std::uint64_t>(to.size));
    for (int tries = 0;;) {
        const std::int64_t before = to.size;
        try {
            if (to.size < file.size || file.size == 0) request(file, to);
            if (to.right()) return;
            const std::string found = to.digest.hex();
            meter_.drop(static_cast<std::uint64_t>(to.size));
            to.clear();
            if (!continued) {
                std::error_code ignored;
                fs::remove(to.path, ignored);
                throw Error::input(
                    {.file = model_.id() + ": " + file.path,
                     .problem = fmt::format("damaged on its way: its hash is {}, the hub says {}",
                                            found, file.blob()),
                     .remedy = "give the command again; if that is no help, look for a proxy that "
                               "changes what it passes on"});
            }
            continued = false;  // the beginning was of something else: once more, from the start
        } catch (const TransportError& error) {
            // A first connection that fails will fail again. A cut will pass.
            const bool came = to.size > before || meter_.fetched() > 0;
            if (to.size > before) tries = 0;
            if (!error.may_pass || !came || !http_.wait(tries++, 0, error.what())) throw;
        }
    }
}

void Store::request(const RemoteFile& file, Partial& to) {
    std::vector<std::string> headers = {"Accept-Encoding: identity"};
    const std::int64_t from = to.size;
    if (from > 0) {
        headers.push_back(fmt::format("Range: bytes={}-", from));
        if (!to.etag.empty()) headers.push_back("If-Range: " + to.etag);
    }
    meter_.pause();
    const Answer answer = http_.get(
        file_url(http_, model_, commit_, file.path), headers,
        [&, first = true](const Answer& head, std::string_view bytes) mutable {
            if (std::exchange(first, false)) {
                const bool here = head.content_range.starts_with(fmt::format("bytes {}-", from));
                if (head.status == 206 && (from == 0 || !here)) {
                    throw TransportError("the hub sent another part than was asked for", false);
                }
                if (head.status == 200 && to.size > 0) {  // all of it, from the start
                    meter_.drop(static_cast<std::uint64_t>(to.size));
                    to.clear();
                }
                // A weak one names no bytes.
                to.etag = head.etag.starts_with("W/") ? "" : head.etag;
            }
            if (to.size + static_cast<std::int64_t>(bytes.size()) > file.size) {
                meter_.drop(static_cast<std::uint64_t>(to.size));
                to.clear();
                throw TransportError(fmt::format("{} is longer than the {} bytes that the hub "
                                                 "named",
                                                 file.path, file.size),
                                     false);
            }
            to.append(bytes);
            meter_.add(bytes.size());
        });
    if (answer.status == 416) {  // there is nothing behind what we have: it is of something else
        meter_.drop(static_cast<std::uint64_t>(to.size));
        to.clear();
        throw TransportError("the hub has no such part of " + file.path, true);
    }
    // A host that has the bytes answers so once the hub's permission has run out: ask again.
    const bool ran_out = answer.status == 403 && !answer.url.starts_with(http_.hub() + "/");
    if (ran_out) {
        throw TransportError(fmt::format("{}: the hub answers {}", file.path, answer.status), true);
    }
    if (answer.status != 200 && answer.status != 206) {
        refuse_answer(http_, model_, model_.id() + ": " + file.path, answer);
    }
    if (to.size < file.size) {
        throw TransportError(
            fmt::format("{} ended after {} of {} bytes", file.path, to.size, file.size), true);
    }
}

// A link beside its place, renamed into it: nobody sees a moment without it.
void Store::link(const RemoteFile& file) const {
    const fs::path at = snapshot() / file.path;
    make_folders(at.parent_path());
    const fs::path target = blob(file).lexically_relative(at.parent_path());
    std::error_code code;
    if (fs::read_symlink(at, code) == target) return;
    const fs::path beside = at.string() + fmt::format(".{}.link", ::getpid());
    fs::remove(beside, code);
    fs::create_symlink(target, beside, code);
    if (!code) fs::rename(beside, at, code);
    if (code) refuse_write(at, "linked", code.value());
}

void Store::set_revision(const std::string& revision) const {
    if (revision == commit_ || !hub::is_safe_path(revision)) return;
    const fs::path at = repository_ / "refs" / revision;
    make_folders(at.parent_path());
    OutputFile file(at.string());
    file.write(commit_);
    file.commit();
}

}  // namespace mr::pull
