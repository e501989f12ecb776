#include "train/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/mapped_file.h"
#include "core/open_file.h"
#include "core/output_file.h"
#include "formats/json.h"

namespace mr::train {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 31;  // some ten million steps

// The shortest form that reads back as the same double.
std::string number(double value) {
    return std::isfinite(value) ? fmt::format("{}", value) : std::string("null");
}

[[noreturn]] void fail(const std::string& path, const char* action, int code) {
    throw Error::input({.file = path,
                        .problem = std::string(action) + ": " + std::strerror(code),
                        .remedy = code == ENOSPC ? "free some space, then --resume the run"
                                                 : "check the folder and its permissions"});
}

// One line of a file, checked.
class Line {
  public:
    Line(std::string_view text, const std::string& file, std::int64_t number)
        : file_(file), where_(fmt::format("line {}", number)) {
        json_ = formats::JsonDocument::parse(text, file, where_, {.depth = 4});
        if (!json_.root().is_object()) throw wrong("", "is not a JSON object");
    }
    // A finite number, or NaN for null.
    double number(const char* key, bool null_allowed) const {
        const formats::JsonValue value = field(key);
        if (value.is_null() && null_allowed) return StepMetrics::kNone;
        if (!value.is_number()) throw wrong(key, "is not a number");
        return value.get<double>();
    }
    double not_negative(const char* key) const {
        const double value = number(key, false);
        if (value < 0) throw wrong(key, "is negative");
        return value;
    }
    std::int64_t count(const char* key) const {
        const formats::JsonValue value = field(key);
        if (!value.is_number_unsigned() || value.get<std::uint64_t>() > (std::uint64_t{1} << 53)) {
            throw wrong(key, "is not a count");
        }
        return value.get<std::int64_t>();
    }
    std::int64_t step() const {
        const formats::JsonValue value = field("step");
        if (!value.is_number_unsigned() || value.get<std::uint64_t>() < 1 ||
            value.get<std::uint64_t>() > (std::uint64_t{1} << 53)) {
            throw wrong("step", "is not a step's number");
        }
        return value.get<std::int64_t>();
    }
    bool flag(const char* key) const {
        const formats::JsonValue value = field(key);
        if (!value.is_boolean()) throw wrong(key, "is neither true nor false");
        return value.get<bool>();
    }
    bool has(const char* key) const { return json_.root().contains(key); }
    Error wrong(const char* key, std::string problem) const {
        return Error::input({.file = file_,
                             .field = *key ? where_ + ", '" + key + "'" : where_,
                             .problem = std::move(problem),
                             .remedy = "it is not as millrace train wrote it"});
    }

  private:
    formats::JsonValue field(const char* key) const {
        const auto at = json_.root().find(key);
        if (!at) throw wrong(key, "is missing");
        return *at;
    }

    const std::string& file_;
    std::string where_;
    formats::JsonDocument json_;
};

StepMetrics parse_line(std::string_view text, const std::string& file, std::int64_t number,
                       std::int64_t after) {
    const Line line(text, file, number);
    StepMetrics m;
    m.step = line.step();
    if (m.step <= after) throw line.wrong("step", "does not come after the line before");
    m.loss = line.number("loss", true);
    if (line.has("val_loss")) m.val_loss = line.number("val_loss", true);
    if (line.has("bits_per_byte")) m.bits_per_byte = line.number("bits_per_byte", true);
    if (line.has("masked")) m.masked = line.count("masked");
    m.lr = line.not_negative("lr");
    m.grad_norm = line.number("grad_norm", true);
    m.tokens_per_second = line.not_negative("tokens_per_second");
    m.data_wait_seconds = line.not_negative("data_wait_seconds");
    m.skipped = line.flag("skipped");
    m.seconds = line.not_negative("seconds");
    return m;
}

// The part of a file's text that a run keeps when it resumes after step `after`.
struct Kept {
    std::string text;
    std::vector<std::int64_t> damaged;  // lines, from 1
    std::int64_t last = 0;              // step
    std::string_view torn;              // after the last newline
    bool ours = false;                  // it is empty, or has a line written by a run
};

Kept kept_lines(std::string_view text, const std::string& path, std::int64_t after) {
    Kept kept;
    kept.ours = text.empty();
    std::size_t damaged_before = 0;  // before the last line that is kept
    for (std::int64_t number = 1; !text.empty(); ++number) {
        const std::size_t end = text.find('\n');
        if (end == std::string_view::npos) {
            kept.torn = text;
            break;
        }
        try {
            const std::int64_t step = parse_line(text.substr(0, end), path, number, kept.last).step;
            kept.ours = true;
            if (step <= after) {
                kept.last = step;
                kept.text += text.substr(0, end + 1);
                damaged_before = kept.damaged.size();
            }
        } catch (const Error&) {
            kept.damaged.push_back(number);
        }
        text.remove_prefix(end + 1);
    }
    // Damaged lines of steps that are done again do not matter.
    if (kept.last == after) kept.damaged.resize(damaged_before);
    return kept;
}

bool has_text(const std::string& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 && status.st_size > 0;
}

[[noreturn]] void leave_alone(const std::string& path, const char* what) {
    throw Error::input({.file = path,
                        .problem = fmt::format("{}, and is left as it is", what),
                        .remedy = "move it away so that a log can be written"});
}

// Opens the log at `path`; -1 if there is none. Links are not followed: their target does not
// belong to the run.
int open_log(const std::string& path) {
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0) {
        if (errno == ENOENT) return -1;
        fail(path, "cannot be examined", errno);
    }
    if (S_ISLNK(status.st_mode)) leave_alone(path, "is a link, not a run's log");
    if (!S_ISREG(status.st_mode)) leave_alone(path, "is not a regular file");
    return open_regular(path, O_RDWR | O_APPEND | O_NOFOLLOW);
}

// O_EXCL: a file that another process made meanwhile stays as it is.
int make_log(const std::string& path) {
    return open_regular(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_NOFOLLOW, 0644);
}

std::string all_text(int fd, const std::string& path) {
    struct stat status {};
    if (::fstat(fd, &status) != 0) fail(path, "cannot be examined", errno);
    const auto size = static_cast<std::size_t>(status.st_size);
    if (size > kMostBytes) leave_alone(path, "is too long for a run's log");
    std::string text(size, '\0');
    std::size_t done = 0;
    while (done < size) {
        const ssize_t count =
            ::pread(fd, text.data() + done, size - done, static_cast<off_t>(done));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) fail(path, "cannot be read", errno);
        if (count == 0) break;
        done += static_cast<std::size_t>(count);
    }
    text.resize(done);
    return text;
}

}  // namespace

std::string metrics_line(const StepMetrics& m) {
    std::string line = fmt::format("{{\"step\": {}, \"loss\": {}", m.step, number(m.loss));
    if (m.val_loss) line += fmt::format(", \"val_loss\": {}", number(*m.val_loss));
    if (m.bits_per_byte) line += fmt::format(", \"bits_per_byte\": {}", number(*m.bits_per_byte));
    if (m.masked) line += fmt::format(", \"masked\": {}", *m.masked);
    line += fmt::format(
        ", \"lr\": {}, \"grad_norm\": {}, \"tokens_per_second\": {}, \"data_wait_seconds\": {}, "
        "\"skipped\": {}, \"seconds\": {}}}\n",
        number(m.lr), number(m.grad_norm), number(m.tokens_per_second), number(m.data_wait_seconds),
        m.skipped, number(m.seconds));
    return line;
}

MetricsWriter::MetricsWriter(const std::string& path, std::int64_t after) : path_(path) {
    fd_ = open_log(path);
    if (fd_ < 0) {
        fd_ = make_log(path);
        return;
    }
    try {
        cut_back(after);
    } catch (...) {
        ::close(fd_);
        throw;
    }
}

MetricsWriter::MetricsWriter(const std::string& path) : path_(path) {
    struct stat status {};
    if (::lstat(path.c_str(), &status) == 0) leave_alone(path, "is not the file that the run made");
    fd_ = make_log(path);
}

void MetricsWriter::cut_back(std::int64_t after) {
    const std::string text = all_text(fd_, path_);
    Kept kept = kept_lines(text, path_, after);
    if (!kept.ours) leave_alone(path_, "has no line that a run wrote");
    size_ = kept.text.size();
    if (after > 0) {
        damaged_ = std::move(kept.damaged);
        last_ = kept.last;
        // A process that dies may leave part of a line, for a step that is done again. Zeros come
        // from a power cut, which may have lost other lines, too.
        if (kept.torn.find('\0') != std::string_view::npos || last_ < after) {
            torn_bytes_ = kept.torn.size();
        }
    }
    if (text.starts_with(kept.text)) {  // only the end is cut off
        if (::ftruncate(fd_, static_cast<off_t>(size_)) != 0) {
            fail(path_, "cannot be cut back", errno);
        }
        return;
    }
    OutputFile file(path_);
    file.write(kept.text);
    file.commit();
    const int fd = open_regular(path_, O_WRONLY | O_APPEND | O_NOFOLLOW);
    ::close(fd_);
    fd_ = fd;
}

MetricsWriter::~MetricsWriter() { ::close(fd_); }

void MetricsWriter::append(std::span<const StepMetrics> metrics) {
    for (const StepMetrics& m : metrics) waiting_ += metrics_line(m);
    std::size_t done = 0;
    while (done < waiting_.size()) {
        const ssize_t count = ::write(fd_, waiting_.data() + done, waiting_.size() - done);
        if (count < 0) {
            if (errno == EINTR) continue;
            const int code = errno;
            // Leave no torn line: the next one would be appended to it. If even that fails, reading
            // detects it.
            if (::ftruncate(fd_, static_cast<off_t>(size_)) != 0) errno = code;
            fail(path_, "cannot be written", code);
        }
        done += static_cast<std::size_t>(count);
    }
    size_ += waiting_.size();
    waiting_.clear();
}

void MetricsWriter::sync() {
    // Some file systems do not support fsync.
    if (::fsync(fd_) == 0 || errno == EINVAL || errno == EROFS) return;
    fail(path_, "cannot be synced", errno);
}

bool MetricsWriter::lost() const {
    struct stat ours {
    }, there{};
    return ::fstat(fd_, &ours) != 0 || ::lstat(path_.c_str(), &there) != 0 ||
           ours.st_ino != there.st_ino || ours.st_dev != there.st_dev;
}

std::vector<StepMetrics> read_metrics(const std::string& path) {
    if (::access(path.c_str(), F_OK) == 0 && !has_text(path)) return {};
    const std::string text = read_text_file(path, kMostBytes);
    std::vector<StepMetrics> all;
    std::size_t at = 0;
    for (std::int64_t number = 1; at < text.size(); ++number) {
        const std::size_t end = text.find('\n', at);
        if (end == std::string::npos) break;
        all.push_back(parse_line(std::string_view(text).substr(at, end - at), path, number,
                                 all.empty() ? 0 : all.back().step));
        at = end + 1;
    }
    return all;
}

}  // namespace mr::train
