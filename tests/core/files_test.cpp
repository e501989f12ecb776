#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <span>

#include "core/error.h"
#include "core/mapped_file.h"
#include "core/open_file.h"
#include "core/output_file.h"
#include "temp_folder.h"

namespace mr {
namespace {

using test::read_all;
using test::TempFolder;

std::string text_of(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

template <typename Body>
Error error_of(Body&& body) {
    try {
        body();
    } catch (const Error& error) {
        return error;
    }
    ADD_FAILURE() << "no error was thrown";
    return Error::input({.problem = "none"});
}

TEST(MappedFile, HoldsTheWholeFile) {
    TempFolder folder;
    std::string text(100001, 'x');
    text[70000] = '\0';
    MappedFile file(folder.write("a", text));
    EXPECT_EQ(text_of(file), text);
    EXPECT_EQ(file.path(), folder / "a");
    MappedFile moved = std::move(file);
    EXPECT_EQ(text_of(moved), text);
    EXPECT_TRUE(file.bytes().empty());  // NOLINT: that it is empty is the point
    MappedFile other;
    other = std::move(moved);
    EXPECT_EQ(text_of(other), text);
}

TEST(MappedFile, ReadsWithoutTheMap) {
    TempFolder folder;
    std::string text(20000, 'a');
    text[12345] = 'b';
    const std::string path = folder.write("a", text);
    const MappedFile file(path);
    std::string part(3, '?');
    file.read(12344, std::as_writable_bytes(std::span(part)));
    EXPECT_EQ(part, "aba");
    file.read(20000, {});
    EXPECT_THROW(file.read(19998, std::as_writable_bytes(std::span(part))), ContractError);
    // Through the map this would be SIGBUS.
    std::filesystem::resize_file(path, 12345);
    const Error error =
        error_of([&] { file.read(12344, std::as_writable_bytes(std::span(part))); });
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_EQ(error.info().file, path);
    EXPECT_NE(std::string(error.what()).find("was truncated while in use"), std::string::npos);
}

TEST(MappedFileDeathTest, AMapWhoseFileWasCutIsNamed) {
    TempFolder folder;
    const std::string path = folder.write("cut", std::string(100000, 'x'));
    EXPECT_EXIT(
        {
            explain_lost_maps("program");
            const MappedFile other(folder.write("other", std::string(100000, 'y')));
            const MappedFile file(path);
            std::filesystem::resize_file(path, 10);
            const volatile std::byte* bytes = file.bytes().data();
            (void)bytes[90000];
        },
        testing::ExitedWithCode(1), "^program: .*/cut: the file was truncated");
    // A SIGBUS outside a mapped file ends the program as usual.
    EXPECT_EXIT(
        {
            explain_lost_maps("program");
            raise(SIGBUS);
        },
        testing::KilledBySignal(SIGBUS), "");
}

TEST(MappedFile, ErrorsNameTheFileAndTheReason) {
    TempFolder folder;
    const auto expect = [&](const std::string& path, const char* reason) {
        const Error error = error_of([&] { MappedFile file(path); });
        EXPECT_EQ(error.kind(), ErrorKind::input);
        EXPECT_EQ(error.info().file, path);
        EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    };
    expect(folder / "missing", "No such file");
    expect(folder / "", "is a directory");
    expect(folder.write("empty", ""), "is empty");
    expect("/dev/null", "not a regular file");
    const std::string locked = folder.write("locked", "x");
    if (::geteuid() != 0) {  // root may read everything
        std::filesystem::permissions(locked, std::filesystem::perms::none);
        expect(locked, "Permission denied");
    }
}

TEST(ReadTextFile, StopsAtItsLimit) {
    TempFolder folder;
    const std::string path = folder.write("a", "12345");
    EXPECT_EQ(read_text_file(path), "12345");
    EXPECT_EQ(read_text_file(path, 5), "12345");
    const Error error = error_of([&] { read_text_file(path, 4); });
    EXPECT_EQ(error.info().field, "size");
    EXPECT_EQ(error.info().value, "5");
}

TEST(OutputFile, AppearsWholeOnCommit) {
    TempFolder folder;
    const std::string path = folder / "out";
    std::string want;
    {
        OutputFile file(path);
        for (int i = 0; i < 3000; ++i) {  // past the buffer
            const std::string part(static_cast<std::size_t>(i % 1500),
                                   static_cast<char>('a' + i % 26));
            file.write(part);
            want += part;
        }
        file.write("x");
        file.pad_to(256);
        want += 'x';
        want.resize((want.size() + 255) / 256 * 256, '\0');
        EXPECT_EQ(file.position(), want.size());
        file.pad_to(32);  // already there
        EXPECT_EQ(file.position(), want.size());
        EXPECT_FALSE(std::filesystem::exists(path));
        file.commit();
    }
    EXPECT_EQ(read_all(path), want);
    EXPECT_EQ(folder.files(), 1u);
}

TEST(OutputFile, HasItsPermissionsFromTheStart) {
    const TempFolder folder;
    const mode_t before = ::umask(0);
    for (const unsigned mode : {0600u, 0644u}) {
        const std::string path = folder / ("file" + std::to_string(mode));
        const auto mode_of = [](const std::string& name) {
            struct stat status {};
            EXPECT_EQ(::stat(name.c_str(), &status), 0) << name;
            return status.st_mode & 0777u;
        };
        OutputFile file(path, mode);
        EXPECT_EQ(mode_of(path + kPartialMark + std::to_string(::getpid())), mode);
        file.commit();
        EXPECT_EQ(mode_of(path), mode);
    }
    ::umask(before);
}

TEST(OutputFile, HasThePermissionsOfTheFileItReplaces) {
    const TempFolder folder;
    const std::string path = folder.write("file", "old"), link = folder / "link";
    std::filesystem::create_symlink("file", link);
    const mode_t before = ::umask(077);
    const auto mode_of = [](const std::string& name) {
        struct stat status {};
        EXPECT_EQ(::stat(name.c_str(), &status), 0) << name;
        return status.st_mode & 07777u;
    };
    for (const unsigned mode : {0600u, 0640u, 0666u, 0444u}) {
        for (const std::string& name : {path, link}) {
            ASSERT_EQ(::chmod(path.c_str(), mode), 0);
            OutputFile file(name);
            EXPECT_EQ(mode_of(path + kPartialMark + std::to_string(::getpid())), mode);
            file.write("new");
            file.commit();
            EXPECT_EQ(mode_of(path), mode);
        }
    }
    ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
    OutputFile file(path, 0600);  // a private file stays one
    EXPECT_EQ(mode_of(path + kPartialMark + std::to_string(::getpid())), 0600u);
    file.commit();
    EXPECT_EQ(mode_of(path), 0600u);
    ::umask(before);
}

TEST(OutputFile, LeavesNothingWithoutCommit) {
    TempFolder folder;
    const std::string path = folder.write("out", "the old one");
    try {
        OutputFile file(path);
        file.write(std::string(3u << 20, 'x'));
        throw std::runtime_error("something else went wrong");
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(read_all(path), "the old one");
    EXPECT_EQ(folder.files(), 1u);
    {
        OutputFile file(path);
        file.write("the new one");
        file.commit();
    }
    EXPECT_EQ(read_all(path), "the new one");
    EXPECT_EQ(folder.files(), 1u);
}

// Redirects the descriptor of the file being written to /dev/full, which has no space.
void fill_the_disk() {
    namespace fs = std::filesystem;
    int writing = -1;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
        std::error_code code;
        const std::string target = fs::read_symlink(entry, code).string();
        if (target.find(kPartialMark) != target.npos) writing = std::stoi(entry.path().filename());
    }
    ASSERT_GE(writing, 0);
    const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
    ASSERT_GE(::dup2(full, writing), 0);
    ::close(full);
}

TEST(OutputFile, AFullDiskLeavesNothing) {
    if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
    TempFolder folder;
    const std::string path = folder / "out";
    for (std::size_t bytes : {std::size_t{10}, std::size_t{3} << 20}) {  // at commit; while writing
        const Error error = error_of([&] {
            OutputFile file(path);
            fill_the_disk();
            file.write(std::string(bytes, 'x'));
            file.commit();
        });
        EXPECT_EQ(error.kind(), ErrorKind::input);
        EXPECT_EQ(error.info().file, path);
        EXPECT_NE(std::string(error.what()).find("No space left"), std::string::npos)
            << error.what();
        EXPECT_NE(error.info().remedy.find("free some space"), std::string::npos);
        EXPECT_EQ(folder.files(), 0u);
    }
}

TEST(OutputFile, ALinkStaysALink) {
    TempFolder folder;
    namespace fs = std::filesystem;
    fs::create_directory(folder / "sub");
    folder.write("sub/real", "the old one");
    fs::create_symlink("sub/real", folder / "link");
    fs::create_symlink(folder / "link", folder / "outer");
    fs::create_symlink("sub/later", folder / "dangling");
    const auto write = [](const std::string& path, const char* text) {
        OutputFile file(path);
        file.write(text);
        file.commit();
    };
    write(folder / "outer", "the new one");
    write(folder / "dangling", "made");
    EXPECT_EQ(read_all(folder / "sub/real"), "the new one");
    EXPECT_EQ(read_all(folder / "sub/later"), "made");
    for (const char* link : {"link", "outer", "dangling"}) {
        EXPECT_TRUE(fs::is_symlink(folder / link)) << link;
    }
    EXPECT_EQ(folder.files(), 4u);  // nothing partial in either folder
    fs::create_symlink("/dev/stdout", folder / "stdout");
    fs::create_symlink("/dev/null", folder / "null");
    for (const char* link : {"stdout", "null"}) {
        const Error error = error_of([&] { OutputFile file(folder / link); });
        EXPECT_NE(std::string(error.what()).find("is a device"), std::string::npos);
    }
}

// Another user who can write to the folder, such as /tmp, must not choose what is overwritten.
TEST(OutputFile, APlantedLinkIsNotFollowed) {
    TempFolder folder;
    namespace fs = std::filesystem;
    const std::string path = folder / "out",
                      temporary = path + kPartialMark + std::to_string(::getpid());
    const std::string victim = folder.write("victim", "precious");
    fs::create_symlink(victim, temporary);
    fs::create_symlink(folder / "made", temporary + ".2");
    {
        OutputFile file(path), again(path);  // two at a time have two names
        file.write("text");
        again.write("other");
        file.commit();
    }
    EXPECT_EQ(read_all(path), "text");
    EXPECT_EQ(read_all(victim), "precious");
    EXPECT_FALSE(fs::exists(folder / "made"));
    EXPECT_TRUE(fs::is_symlink(temporary)) << "it is not ours to remove";
    EXPECT_EQ(folder.files(), 4u);
}

// Removes what SIGKILL or SIGBUS left, but not files that another process is writing.
TEST(OutputFile, LeftoversAreRemoved) {
    TempFolder folder;
    namespace fs = std::filesystem;
    const std::string path = folder / "out";
    const std::string dead = folder.write("out.millrace-partial.4711", "half");
    const std::string dead_too = folder.write("out.millrace-partial.4711.2", "half");
    const std::string other = folder.write("outer.millrace-partial.4711", "of another name");
    const std::string used = folder.write("out.millrace-partial.4712", "being written");
    const int lock = ::open(used.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);
    {
        OutputFile file(path);
        EXPECT_FALSE(fs::exists(dead));
        EXPECT_FALSE(fs::exists(dead_too));
        OutputFile another(path);  // leaves the one that is being written
        file.write("text");
        file.commit();
    }
    EXPECT_EQ(read_all(path), "text");
    for (const std::string& stays : {other, used}) EXPECT_TRUE(fs::exists(stays)) << stays;
    ::close(lock);
    { OutputFile file(path); }
    EXPECT_FALSE(fs::exists(used));
    EXPECT_EQ(folder.files(), 2u);
}

TEST(OutputFile, FilesOfAPersonStay) {
    TempFolder folder;
    std::vector<std::string> theirs;
    for (const char* name :
         {"out.partial.2024", "out.partial.4711.2", "out.millrace-partial.txt",
          "out.millrace-partial.", "out.millrace-partial.4711.", "out.millrace-partial.4711.1",
          "out.millrace-partial.4711.101", "out.millrace-partial.4711.2.2",
          "out.millrace-partial.0", "out.millrace-partial.04711", "out.millrace-partial.-1",
          "out.millrace-partial.99999999999", "out.millrace-partial.2024.11.18"}) {
        theirs.push_back(folder.write(name, "precious"));
    }
    {
        OutputFile file(folder / "out");
        file.commit();
    }
    for (const std::string& path : theirs) EXPECT_EQ(read_all(path), "precious") << path;
}

// Opening a FIFO would wait for another process forever.
TEST(Files, APipeInPlaceOfAFileIsRefusedAtOnce) {
    TempFolder folder;
    const std::string pipe = folder / "pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    const auto expect = [&](const char* says, const std::function<void()>& act) {
        const Error error = error_of(act);
        EXPECT_EQ(error.kind(), ErrorKind::input);
        EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    };
    expect("is a pipe, not a regular file", [&] { MappedFile file(pipe); });
    expect("is a pipe, not a regular file", [&] { read_text_file(pipe); });
    expect("is a pipe, not a regular file", [&] { open_regular(pipe, O_WRONLY); });
    expect("is a device or a pipe", [&] { OutputFile file(pipe); });
    expect("is a device, not a regular file", [&] { read_text_file("/dev/zero"); });
    try {
        sync_path(pipe);  // the result does not matter
    } catch (const Error&) {
    }
}

TEST(Files, NoDescriptorsLeftIsNoWrongPath) {
    TempFolder folder;
    const std::string path = folder.write("a", "text");
    rlimit before{}, none{};
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = 3;
    setrlimit(RLIMIT_NOFILE, &none);
    const Error error = error_of([&] { MappedFile file(path); });
    const Error writing = error_of([&] { OutputFile file(folder / "b"); });
    setrlimit(RLIMIT_NOFILE, &before);
    EXPECT_EQ(error.kind(), ErrorKind::device);
    EXPECT_NE(error.info().remedy.find("ulimit -n"), std::string::npos) << error.what();
    EXPECT_NE(writing.info().remedy.find("ulimit -n"), std::string::npos) << writing.what();
}

TEST(OutputFile, RefusesWhatIsNoFile) {
    TempFolder folder;
    const auto expect = [&](const std::string& path, const char* reason) {
        const Error error = error_of([&] { OutputFile file(path); });
        EXPECT_EQ(error.kind(), ErrorKind::input);
        EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    };
    expect(folder / "", "is a directory");
    expect(folder / "no/such/folder/out", "cannot be created");
    expect("/dev/null", "is a device");
    EXPECT_EQ(folder.files(), 0u);
}

}  // namespace
}  // namespace mr
