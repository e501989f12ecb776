#include "core/start_thread.h"

#include <system_error>
#include <utility>

#include "core/error.h"

namespace mr {

std::thread start_thread(std::function<void()> work, const std::string& purpose,
                         const std::string& remedy) {
    try {
        return std::thread(std::move(work));
    } catch (const std::system_error& error) {  // a limit on processes or on address space
        throw Error::device(
            {.problem = "no thread could be started " + purpose + ": " + error.code().message(),
             .remedy = remedy});
    }
}

}  // namespace mr
