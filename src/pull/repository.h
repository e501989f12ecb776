// What a hub says about a repository: its commit and its files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hub/reference.h"
#include "pull/http.h"

namespace mr::pull {

struct RemoteFile {
    std::string path;
    std::int64_t size = -1;  // bytes; -1: not said
    std::string sha256;      // of large files; else empty
    std::string git;         // git's hash of a small file (SHA-1 of "blob SIZE\0" and the bytes)
    std::string etag;        // another name of this content, which is no hash; else empty

    bool hashed() const { return !sha256.empty() || !git.empty(); }
    // Its name among the blobs of the cache.
    const std::string& blob() const { return !sha256.empty() ? sha256 : !git.empty() ? git : etag; }
};

struct Repository {
    std::string commit;
    std::vector<RemoteFile> files;
};

// Throws Error (input) with what to do: no such model, gated, private, no such revision.
Repository open_repository(Http& http, const hub::Reference& model, const std::string& revision);

// Asks for size and hash of a file of which the list has none. Throws Error (input) if the hub does
// not know either.
void complete_file(Http& http, const hub::Reference& model, const std::string& commit,
                   RemoteFile& file);

std::string file_url(const Http& http, const hub::Reference& model, const std::string& commit,
                     const std::string& path);

// For an answer that is neither 200 nor 206. `what`: the model, or a file of it.
[[noreturn]] void refuse_answer(const Http& http, const hub::Reference& model,
                                const std::string& what, const Answer& answer);

}  // namespace mr::pull
