#include "cli/peer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "core/error.h"

namespace mr::cli {

std::string peer_command(const std::string& script) {
    namespace fs = std::filesystem;
    const char* python = std::getenv("MILLRACE_PYTHON");
    std::string path;
    for (const char* place : {"bench/peers", MR_SOURCE_PEERS}) {
        const fs::path there = fs::path(place) / script;
        if (path.empty() && fs::exists(there)) path = there.string();
    }
    if (path.empty()) {
        throw Error::usage({.field = "--peer",
                            .value = "torch",
                            .problem = fmt::format("bench/peers/{} was not found", script),
                            .remedy = "run it from the source directory"});
    }
    return fmt::format("'{}' '{}'", python ? python : "python3", path);
}

std::vector<Json> ask_peer(const std::string& script, const std::string& arguments) {
    const std::string command = peer_command(script) + " " + arguments;
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
    std::string text;
    char piece[4096];
    while (pipe && std::fgets(piece, sizeof piece, pipe.get())) text += piece;
    std::vector<Json> lines;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        if (auto line = object_of_line(std::string_view(text).substr(at, end - at))) {
            lines.push_back(std::move(*line));
        }
        at = end + 1;
    }
    if (lines.empty()) {
        throw Error::input({.field = "--peer",
                            .value = "torch",
                            .problem = "'" + command + "' measured nothing",
                            .remedy = "install PyTorch, or name a python that has it in "
                                      "MILLRACE_PYTHON"});
    }
    return lines;
}

}  // namespace mr::cli
