# The command line: one file per command in src/cli.
file(GLOB cli_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cli/*.cpp)
if(cli_sources)
    find_package(CLI11 REQUIRED)
    add_executable(millrace_cli ${cli_sources})
    set_target_properties(millrace_cli PROPERTIES OUTPUT_NAME millrace)
    target_include_directories(millrace_cli PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(millrace_cli PRIVATE millrace mr_options CLI11::CLI11 fmt::fmt
                          nlohmann_json::nlohmann_json)
endif()
