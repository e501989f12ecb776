#include "train/corpus.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <glob.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/printable.h"
#include "core/utf8.h"
#include "formats/json.h"

namespace mr::train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLookedAt = 4096;  // bytes checked for signs that a file is not text

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::vector<std::string> files_under(const std::string& folder) {
    std::vector<std::string> out;
    try {
        for (auto it = fs::recursive_directory_iterator(folder); it != fs::end(it); ++it) {
            if (hidden(it->path())) {
                if (it->is_directory()) it.disable_recursion_pending();
            } else if (it->is_regular_file()) {
                out.push_back(it->path().string());
            }
        }
    } catch (const fs::filesystem_error& error) {
        throw Error::input({.file = folder,
                            .problem = "cannot be read: " + error.code().message(),
                            .remedy = "check the folder and its permissions"});
    }
    if (out.empty()) {
        throw Error::input({.file = folder,
                            .problem = "the folder has no files",
                            .remedy = "give files with text"});
    }
    std::sort(out.begin(), out.end());
    return out;
}

std::vector<std::string> matches(const std::string& pattern) {
    glob_t found{};
    std::vector<std::string> out;
    if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {  // sorted
        out.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    }
    ::globfree(&found);
    return out;
}

// Files that a corpus is often given as, and which would be packed as noise. By more bytes than a
// word that a text may begin with.
struct Foreign {
    std::string_view magic;
    const char* what;
    const char* remedy;
    std::size_t at = 0;
};
constexpr const char* kUnpack = "unpack it first";
constexpr const char* kConvert = "convert it: iconv -f utf-16 -t utf-8";
const Foreign kForeign[] = {
    {"PAR1", "Parquet",
     "millrace.data.pack of the Python package reads it (with pyarrow), or write a JSON object per "
     "line"},
    {"ARROW1", "an Arrow file", "write a JSON object per line"},
    {"\xfd"
     "7zXZ",
     "packed by xz", kUnpack},
    {"1AY&SY", "packed by bzip2", kUnpack, 4},
    {"PK\x03\x04", "a ZIP archive", kUnpack},
    {"7z\xbc\xaf", "a 7z archive", kUnpack},
    {"\x04\x22\x4d\x18", "packed by lz4", kUnpack},
    {"ustar", "a tar archive", kUnpack, 257},
    {"\x1f\x8b", "packed by gzip", kUnpack},
    {"\x28\xb5\x2f\xfd", "packed by zstd", kUnpack},
    {"%PDF-", "a PDF", "convert it: pdftotext"},
    {"GGUF\x03", "a GGUF file", "leave it out"},
    {"\xff\xfe", "UTF-16", kConvert},
    {"\xfe\xff", "UTF-16", kConvert},
};

// The program that unpacks these bytes; null: they are not packed.
const char* unpacker(std::string_view bytes) {
    if (bytes.starts_with("\x1f\x8b")) return "gzip";
    if (bytes.starts_with("\x28\xb5\x2f\xfd")) return "zstd";
    // A frame for other programs, with which pzstd begins.
    if (bytes.size() > 4 && bytes.substr(1, 3) == "\x2a\x4d\x18" && (bytes[0] & 0xf0) == 0x50) {
        return "zstd";
    }
    return nullptr;
}

// A file of no name, which goes with its last descriptor.
int nameless_file() {
    std::error_code code;
    const fs::path folder = fs::temp_directory_path(code);
    const std::string name = (folder / "millrace-XXXXXX").string();
    std::vector<char> made(name.c_str(), name.c_str() + name.size() + 1);
    const int file = code ? -1 : ::mkostemp(made.data(), O_CLOEXEC);
    if (file < 0) {
        throw Error::input(
            {.file = code ? std::string("TMPDIR") : name,
             .problem = code ? "is not a folder that can be written"
                             : fmt::format("cannot be made: {}", std::strerror(errno)),
             .remedy = "name another folder with TMPDIR"});
    }
    ::unlink(made.data());
    return file;
}

// Waits for a process's end, and returns its status. `progress` may throw: then it is killed.
int wait_for(pid_t process, const std::string& what, const Progress& progress) {
    const auto ended = [&](int& status, int flags) {
        pid_t found = 0;
        do found = ::waitpid(process, &status, flags);
        while (found < 0 && errno == EINTR);
        return found != 0;
    };
    int status = 0;
    for (int tenths = 0; !ended(status, progress ? WNOHANG : 0);
         tenths = std::min(tenths + 1, 10)) {
        try {
            progress(what, 0, 0);
        } catch (...) {
            ::kill(process, SIGKILL);
            ended(status, 0);
            throw;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1 + 5 * tenths));
    }
    // A Ctrl-C that ended it is ours, too.
    if (progress && WIFSIGNALED(status)) progress(what, 0, 0);
    return status;
}

// What `program` makes of a file, in a file of its own: a pipe could not be read twice.
MappedFile unpacked(const std::string& path, const char* program, const Progress& progress) {
    struct Descriptor {
        int at;
        ~Descriptor() { ::close(at); }
    };
    const Descriptor out{nameless_file()}, said{nameless_file()};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, out.at, 1);
    ::posix_spawn_file_actions_adddup2(&actions, said.at, 2);
    // zstd refuses files of long windows unless it is allowed the memory for them.
    const bool zstd = program == std::string_view("zstd");
    const char* const words[] = {program, zstd ? "-dcq" : "-dc", zstd ? "--long=31" : "--",
                                 path.c_str(), nullptr};
    pid_t process = -1;
    const int error = ::posix_spawnp(&process, program, &actions, nullptr,
                                     const_cast<char* const*>(words), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
        throw Error::input({.file = path,
                            .problem = fmt::format("is packed by {0}, and the program {0} cannot "
                                                   "be started: {1}",
                                                   program, std::strerror(error)),
                            .remedy = fmt::format("install {}, or unpack the file", program)});
    }
    const int status =
        wait_for(process, "unpacking " + fs::path(path).filename().string(), progress);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        char text[300];
        const ssize_t size = ::pread(said.at, text, sizeof text, 0);
        std::string_view line(text, static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
        // gzip begins with an empty line.
        line.remove_prefix(std::min(line.find_first_not_of(" \n"), line.size()));
        line = line.substr(0, line.find('\n'));
        throw Error::input({.file = path,
                            .problem = fmt::format("cannot be unpacked: {}", printable(line)),
                            .remedy = "check the file, and that TMPDIR has room for it"});
    }
    struct stat made {};
    if (::fstat(out.at, &made) == 0 && made.st_size == 0) return {};
    return MappedFile(fmt::format("/proc/self/fd/{}", out.at));
}

using formats::JsonValue;

std::string lower_ending(const fs::path& name) {
    std::string ending = name.extension().string();
    for (char& c : ending) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return ending;
}

// By the name under the packing's, or if the first line is an object: a corpus of such texts would
// be packed as raw JSON.
bool is_json_lines(const std::string& path, std::string_view text) {
    fs::path name = path;
    for (const char* packing : {".gz", ".gzip", ".zst", ".zstd"}) {
        if (lower_ending(name) == packing) {
            name = name.stem();
            break;
        }
    }
    const std::string ending = lower_ending(name);
    const bool named = ending == ".jsonl" || ending == ".ndjson" || ending == ".json" ||
                       ending == ".jsonlines" || ending == ".jl";
    const std::size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) return false;
    std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
    line = line.substr(0, line.find_last_not_of(" \t\r") + 1);
    // A list of objects, or an object of several lines.
    const std::size_t in_list = line.find_first_not_of(" \t\r", 1);
    const bool list = line.starts_with('[') && (in_list == line.npos || line[in_list] == '{' ||
                                                line[in_list] == '[' || line[in_list] == '"');
    if (named ? list || line == "{" : list && in_list != line.npos && line[in_list] == '{') {
        throw Error::input({.file = path,
                            .problem = "is JSON, but not an object per line",
                            .remedy = "write one record per line: jq -c '.[]'"});
    }
    if (!line.starts_with('{') && !named) return false;
    try {
        const auto json = formats::JsonDocument::parse(
            line,
            fmt::format("{}, line {}", path, 1 + std::ranges::count(text.substr(0, begin), '\n')));
        if (json.root().is_object()) return true;
    } catch (const Error&) {
        if (named) throw;
        return false;  // a text that begins with a brace
    }
    throw Error::input({.file = path,
                        .problem = "is JSON, but not an object per line",
                        .remedy = "write one record per line"});
}

text::ChatMessage chat_message(JsonValue json, const std::string& where) {
    const auto refuse = [&](const char* problem) {
        throw Error::input({.file = where, .problem = problem, .remedy = "leave it out"});
    };
    const auto role = json.find_set("role"), content = json.find_set("content");
    if (!role || !role->is_string()) refuse("a message has no \"role\"");
    if (json.find_set("tool_calls")) refuse("a message has \"tool_calls\", which are not packed");
    text::ChatMessage message{.role = std::string(role->text())};
    if (content && content->is_string()) {
        message.content = content->text();
    } else if (content && content->is_array()) {
        for (const JsonValue part : *content) {
            const auto text = part.find_set("text");
            if (!text || !text->is_string()) refuse("a part of a message is not text");
            message.content += text->text();
        }
    } else {
        refuse("a message has no \"content\"");
    }
    return message;
}

}  // namespace

std::vector<std::string> corpus_files(const std::vector<std::string>& arguments) {
    std::vector<std::string> out;
    std::set<std::string> seen;
    const auto add = [&](const std::string& path) {
        if (seen.insert(fs::path(path).lexically_normal().string()).second) out.push_back(path);
    };
    for (const std::string& argument : arguments) {
        std::vector<std::string> named = {argument};
        std::error_code code;
        if (!fs::exists(argument, code)) {
            if (argument.find_first_of("*?[") != std::string::npos) named = matches(argument);
            if (named.empty()) {
                throw Error::input({.file = argument,
                                    .problem = "no file matches it",
                                    .remedy = "check the path"});
            }
        }
        for (const std::string& path : named) {
            if (fs::is_directory(path, code)) {
                for (const std::string& file : files_under(path)) add(file);
            } else {
                add(path);
            }
        }
    }
    return out;
}

void require_text(std::string_view text, const std::string& name) {
    const auto refuse = [&](std::string problem, std::string remedy) {
        throw Error::input(
            {.file = name, .problem = std::move(problem), .remedy = std::move(remedy)});
    };
    for (const Foreign& foreign : kForeign) {
        if (text.substr(std::min(foreign.at, text.size())).starts_with(foreign.magic)) {
            refuse(fmt::format("is not text: it is {}", foreign.what), foreign.remedy);
        }
    }
    if (text.substr(0, kLookedAt).find('\0') != std::string_view::npos) {
        refuse("is not text: it has zero bytes", "convert it to UTF-8, or leave it out");
    }
    if (const auto fault = utf8_fault(text)) {
        refuse(fmt::format("is not UTF-8: byte 0x{:02x} in line {}",
                           static_cast<unsigned char>(text[*fault]),
                           1 + std::ranges::count(text.substr(0, *fault), '\n')),
               "convert it: iconv -f latin1 -t utf-8, or what it was written in");
    }
}

CorpusFile::CorpusFile(const std::string& path, std::string_view separator,
                       const text::ChatWriter* chats, const Progress& progress)
    : path_(path), documents_({}, separator), chats_(chats) {
    std::error_code code;
    if (fs::is_regular_file(path, code) && fs::file_size(path, code) == 0 && !code) return;
    file_ = MappedFile(path);
    const auto whole = [&] {
        return std::string_view(reinterpret_cast<const char*>(file_.bytes().data()),
                                file_.bytes().size());
    };
    if (const char* program = unpacker(whole())) {
        file_ = unpacked(path, program, progress);
        if (file_.bytes().empty()) return;
    }
    require_text(whole(), path);
    text_ = text::without_mark(whole());
    lines_ = is_json_lines(path, text_);
    rest_ = text_;
    documents_ = text::Documents(lines_ ? std::string_view() : text_, separator);
}

bool CorpusFile::next(Document& document) {
    if (!lines_) {
        document.chat = nullptr;
        return documents_.next(document.text);
    }
    while (!rest_.empty()) {
        std::string_view line = rest_.substr(0, rest_.find('\n'));
        rest_.remove_prefix(std::min(rest_.size(), line.size() + 1));
        ++line_;
        if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        document = record(line);
        if (!document.text.empty()) return true;
    }
    return false;
}

void CorpusFile::release() {
    while (made_.size() > 1) made_.pop_front();
}

double CorpusFile::done() const {
    if (text_.empty()) return 1;
    const std::size_t left = lines_ ? rest_.size() : documents_.left();
    return 1 - static_cast<double>(left) / static_cast<double>(text_.size());
}

Document CorpusFile::record(std::string_view line) {
    const std::string where = fmt::format("{}, line {}", path_, line_);
    const auto json = formats::JsonDocument::parse(line, where);
    const JsonValue root = json.root();
    const auto messages = [&](JsonValue list, std::vector<text::ChatMessage>& to) {
        for (const JsonValue message : list) to.push_back(chat_message(message, where));
    };
    text::ChatText& made = made_.emplace_back();
    const auto conversation = [&](const std::vector<text::ChatMessage>& said) -> Document {
        if (!chats_) {
            for (const text::ChatMessage& message : said) made.bytes += message.content + "\n";
            return {made.bytes};
        }
        try {
            made = chats_->write(said, false);
        } catch (const Error& error) {
            throw Error::input({.file = where, .problem = error.what()});
        }
        return {made.bytes, &made};
    };
    const auto text = root.find_set("text"), list = root.find_set("messages"),
               prompt = root.find_set("prompt"), completion = root.find_set("completion");
    std::vector<text::ChatMessage> said;
    if (text && text->is_string()) {
        made.bytes = text->text();
        return {made.bytes};
    }
    if (list && list->is_array()) {
        messages(*list, said);
        return conversation(said);
    }
    if (prompt && completion && prompt->is_string() && completion->is_string()) {
        made.bytes = fmt::format("{}{}", prompt->text(), completion->text());
        return {made.bytes};
    }
    if (prompt && completion && prompt->is_array() && completion->is_array()) {
        messages(*prompt, said);
        messages(*completion, said);
        return conversation(said);
    }
    std::string keys;
    for (const formats::JsonItem& item : root.items_in_file_order()) {
        keys += fmt::format("{}{}", keys.empty() ? "" : ", ", printable(item.key, 40));
        if (keys.size() > 200) break;
    }
    throw Error::input({.file = where,
                        .problem = fmt::format("has no \"text\" that is a text, no list of "
                                               "\"messages\", and not both \"prompt\" and "
                                               "\"completion\" of one kind; its keys: {}",
                                               keys.empty() ? "none" : keys),
                        .remedy = "rename or fill the keys, for example with jq; or leave out what "
                                  "is no corpus"});
}

std::uint64_t file_bytes(const std::string& path) {
    std::error_code code;
    const std::uint64_t size = fs::file_size(path, code);
    return code ? 0 : size;
}

std::uint64_t corpus_bytes(const std::vector<std::string>& files) {
    std::uint64_t bytes = 0;
    for (const std::string& path : files) bytes += file_bytes(path);
    return bytes;
}

}  // namespace mr::train
