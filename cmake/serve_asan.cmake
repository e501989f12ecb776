# millrace_asan: the program with its request handling under AddressSanitizer and UBSan, in every
# build type; tests/cli/hostile_test.py attacks it. Instrumented are `serve`, the generation loops
# of `decode`, and `text` and `formats` (compiled by fuzz.cmake). The rest is linked from the normal
# build: compiling it again would take minutes.
if(MILLRACE_SANITIZE OR MILLRACE_TSAN OR NOT TARGET mr_cli)
    return()
endif()
file(GLOB_RECURSE serve_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/serve/*.cpp
     ${PROJECT_SOURCE_DIR}/src/decode/*.cpp)
list(FILTER serve_sources EXCLUDE REGEX
     "(_(test|bench|fuzz|cuda)|/decode/(api|eval[a-z_]*|measure[a-z_]*))\\.cpp$")
add_library(mr_serve_asan OBJECT ${serve_sources})
set_target_properties(mr_serve_asan PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 15)
target_link_libraries(mr_serve_asan PRIVATE mr_sanitized_options)
target_compile_options(mr_serve_asan PRIVATE ${undefined} -fno-sanitize=alignment  # as in fuzz.cmake
                       -O0)  # half the time of -O1

# Objects come before archives, so the instrumented code is found first. Some symbols are defined
# twice: the library has formats/json.cpp in one object with a part of `convert`.
add_executable(millrace_asan ${PROJECT_SOURCE_DIR}/src/cli/main.cpp
               $<TARGET_OBJECTS:mr_serve_asan> $<TARGET_OBJECTS:mr_sanitized_text>)
target_link_libraries(millrace_asan PRIVATE mr_cli)
target_link_options(millrace_asan PRIVATE ${address} ${undefined} -Wl,--allow-multiple-definition)
