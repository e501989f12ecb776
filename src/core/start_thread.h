// Starts a thread, or says why there is none.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace mr {

// `purpose` completes "no thread could be started ...", such as "to read the data". Throws Error
// (device) where the system allows no further thread.
std::thread start_thread(std::function<void()> work, const std::string& purpose,
                         const std::string& remedy = "raise the limit (ulimit -u, ulimit -v)");

}  // namespace mr
