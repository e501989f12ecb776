// A program that is asked and answers, line by line, for as long as the object lives.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace mr::cli {

class Coprocess {
  public:
    // `command` is the shell's. Its errors go where this program's go.
    explicit Coprocess(const std::string& command);
    ~Coprocess();
    Coprocess(const Coprocess&) = delete;
    Coprocess& operator=(const Coprocess&) = delete;

    // A line to the program, and the next one from it, without its end; false and none where it is
    // gone.
    bool say(const std::string& line);
    std::optional<std::string> hear();

  private:
    int socket_ = -1;
    pid_t process_ = -1;
    std::string read_;  // and not yet given
};

}  // namespace mr::cli
