# millrace-pull: what `millrace pull` starts. The only program that links libcurl: `millrace`, and with it
# the server, cannot open a connection to another host. Built where the headers of libcurl and OpenSSL
# are.
if(TARGET millrace_cli AND NOT MILLRACE_PYTHON)
    find_package(CURL 7.85 QUIET)
    find_package(OpenSSL 3.0 QUIET COMPONENTS Crypto)
    if(CURL_FOUND AND TARGET OpenSSL::Crypto)
        file(GLOB pull_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/pull/*.cpp)
        add_executable(millrace_pull ${pull_sources} ${PROJECT_SOURCE_DIR}/src/cli/colour.cpp
                       ${PROJECT_SOURCE_DIR}/src/cli/terminal.cpp)
        set_target_properties(millrace_pull PROPERTIES OUTPUT_NAME millrace-pull
                              RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
        target_include_directories(millrace_pull PRIVATE ${PROJECT_SOURCE_DIR}/src)
        target_link_libraries(millrace_pull PRIVATE millrace millrace_version mr_options ${MR_FMT}
                              CURL::libcurl OpenSSL::Crypto)
        target_compile_options(millrace_pull PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1> ${MR_FALSE_ALARMS})
        millrace_together(millrace_pull 16)
        if(MILLRACE_PACKAGE)
            target_link_options(millrace_pull PRIVATE -static-libstdc++ -static-libgcc)
        endif()
        add_dependencies(millrace_cli millrace_pull)  # whoever builds the program has both
    else()
        message(STATUS "libcurl 7.85 or OpenSSL 3 was not found: `millrace pull` will not download "
                       "(Debian: libcurl4-openssl-dev, libssl-dev)")
    endif()
endif()
