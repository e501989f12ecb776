// Puts a repository's files into the cache (hub/cache.h), each whole and checked or not at all.
// What a killed process left of a file is continued, whichever program that was, if it is named as
// here.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "hub/reference.h"
#include "pull/http.h"
#include "pull/meter.h"
#include "pull/repository.h"

namespace mr::pull {

class Store {
  public:
    Store(Http& http, hub::Reference model, std::filesystem::path cache, std::string commit,
          bool verify, Meter& meter);

    // Downloads the file unless it is here (verify: with the right hash), and links it into the
    // snapshot. Waits while another process downloads it. Throws Error (input): refused by the hub,
    // damaged, no room.
    void fetch(const RemoteFile& file);
    // Bytes of the file that are still to come.
    std::uint64_t missing(const RemoteFile& file);
    // From now on the revision stands for this commit.
    void set_revision(const std::string& revision) const;

    std::filesystem::path snapshot() const { return repository_ / "snapshots" / commit_; }
    const std::filesystem::path& cache() const { return cache_; }

  private:
    struct Partial;
    // verify: also has the hash that the hub names.
    bool complete(const RemoteFile& file);
    std::filesystem::path blob(const RemoteFile& file) const;
    std::filesystem::path partial(const RemoteFile& file) const;
    void download(const RemoteFile& file, Partial& to);
    // One request for what is missing. Throws TransportError for a cut.
    void request(const RemoteFile& file, Partial& to);
    void link(const RemoteFile& file) const;

    Http& http_;
    hub::Reference model_;
    std::filesystem::path cache_, repository_;
    std::string commit_;
    bool verify_;
    std::map<std::string, bool> verified_;  // blobs of which the hash was checked
    Meter& meter_;
};

}  // namespace mr::pull
