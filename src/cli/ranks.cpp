#include "cli/ranks.h"

#include <fmt/format.h>

#include <memory>

#include "cli/terminal.h"
#include "core/comm/launch.h"
#include "core/error.h"

namespace mr::cli {

int as_rank(double timeout, const std::function<int(comm::Comm&)>& body) {
    comm::choose_device();
    const std::unique_ptr<comm::Comm> comm = comm::join(comm::Comm::Seconds(timeout));
    if (comm->alone()) return body(*comm);
    const auto end = [&](int code, const char* what) {
        err(fmt::format("{}: rank {} of {}: {}\n", program_name(), comm->rank(), comm->size(),
                        one_line(what)));
        comm->abort(code);
    };
    try {
        return body(*comm);
    } catch (const Error& error) {
        end(error.exit_code(), error.what());
    } catch (const std::exception& error) {
        end(1, error.what());
    } catch (const Interrupted&) {
        comm->abort(InterruptGuard::exit_code());
    } catch (...) {  // standard output is closed: the reader has what it wanted
        comm->abort(1);
    }
    return 1;
}

}  // namespace mr::cli
