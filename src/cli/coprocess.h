// A program that answers requests line by line, for the lifetime of the object.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace mr::cli {

class Coprocess {
  public:
    // `command` is run by the shell. Its standard error is this program's.
    explicit Coprocess(const std::string& command);
    ~Coprocess();
    Coprocess(const Coprocess&) = delete;
    Coprocess& operator=(const Coprocess&) = delete;

    // Sends a line, and reads the next one without its end; false and none if the program has
    // ended.
    bool say(const std::string& line);
    std::optional<std::string> hear();

  private:
    int socket_ = -1;
    pid_t process_ = -1;
    std::string read_;  // read, not returned yet
};

}  // namespace mr::cli
