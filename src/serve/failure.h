// The error of a request, as reported to its client.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "core/error.h"

namespace mr::serve {

struct Failure : std::exception {
    int status = 400;
    std::string message{};
    std::string type = "invalid_request_error";
    std::string param{};     // the field; empty: none
    std::string code{};      // empty: none
    int retry_after_ms = 0;  // for 429 and 503; 0: not given

    const char* what() const noexcept override { return message.c_str(); }

    // Invalid request: 400, with the field's name.
    static Failure bad(std::string param, std::string message, std::string code = {}) {
        Failure out;
        out.message = std::move(message);
        out.param = std::move(param);
        out.code = std::move(code);
        return out;
    }
    static Failure of(int status, std::string type, std::string message, std::string code = {}) {
        Failure out;
        out.status = status;
        out.type = std::move(type);
        out.message = std::move(message);
        out.code = std::move(code);
        return out;
    }
    // An error of the engine: the request's fault if it is of kind input or usage.
    static Failure of(const Error& error) {
        if (error.kind() == ErrorKind::device) return of(500, "server_error", error.what());
        return bad(error.info().field, error.what());
    }
    static Failure late() {
        return of(504, "timeout_error", "the request took longer than the server's limit",
                  "timeout");
    }
    static Failure draining() {
        Failure out = of(503, "server_error", "the server is shutting down", "shutting_down");
        out.retry_after_ms = 1000;
        return out;
    }
};

// The field's value is not acceptable.
[[noreturn]] inline void wrong(const std::string& field, const std::string& problem) {
    throw Failure::bad(field, "'" + field + "' " + problem, "invalid_value");
}

}  // namespace mr::serve
