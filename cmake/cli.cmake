# The command line: one file per command in src/cli, one per measurement in src/cli/bench.
# The default model. Only this line names its file.
set(MILLRACE_BUNDLED_MODEL storyteller.gguf)

# bench/: what `millrace bench diffusion` and `millrace bench serve` measure with.
file(GLOB bench_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/*/*.cpp)
list(FILTER bench_sources EXCLUDE REGEX "_test\\.cpp$")
if(MILLRACE_HAS_CUDA)
    file(GLOB bench_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/*/*.cu)
else()
    set(bench_kernels "")
    list(FILTER bench_sources EXCLUDE REGEX "_cuda\\.cpp$")
endif()
add_library(mr_bench STATIC ${bench_sources} ${bench_kernels})
target_include_directories(mr_bench PUBLIC ${PROJECT_SOURCE_DIR} PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(mr_bench PUBLIC millrace PRIVATE mr_options ${MR_FMT})
millrace_together(mr_bench 12)
if(MILLRACE_HAS_CUDA)
    target_compile_definitions(mr_bench PRIVATE MR_CUDA=1)
    target_link_libraries(mr_bench PRIVATE CUDA::cudart_static)
endif()

# The man page and the completions of shells are made by the program (cmake/install.cmake).
function(millrace_pages target name)
    file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/pages)
    add_custom_command(TARGET ${target} POST_BUILD COMMAND ${CMAKE_COMMAND}
                       -DPROGRAM=$<TARGET_FILE:${target}> -DNAME=${name}
                       -DFOLDER=${PROJECT_BINARY_DIR}/pages
                       -P ${PROJECT_SOURCE_DIR}/cmake/pages.cmake)
endfunction()

# Sets libedit to what has to be linked for line editing; empty where it is missing or not wanted.
function(millrace_find_libedit)
    set(found "")
    if(MILLRACE_PYTHON)  # whose module must not need it
    elseif(MILLRACE_PACKAGE)  # nor may other machines
        foreach(name edit tinfo bsd md)
            find_library(MILLRACE_LIB_${name} lib${name}.a)
            list(APPEND found ${MILLRACE_LIB_${name}})
        endforeach()
        if(found MATCHES "NOTFOUND")
            set(found "")
        endif()
    else()
        find_package(PkgConfig QUIET)
        if(PKG_CONFIG_FOUND)
            pkg_check_modules(LIBEDIT QUIET IMPORTED_TARGET libedit)
        endif()
        if(LIBEDIT_FOUND)
            set(found PkgConfig::LIBEDIT)
        endif()
    endif()
    set(libedit "${found}" PARENT_SCOPE)
endfunction()

file(GLOB_RECURSE cli_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cli/*.cpp)
if(cli_sources)
    find_package(CLI11 REQUIRED)
    # Everything but main(): the program and the fault-injecting one (cmake/cli_tests.cmake) each
    # have their own.
    list(REMOVE_ITEM cli_sources ${PROJECT_SOURCE_DIR}/src/cli/main.cpp)
    add_library(mr_cli OBJECT ${cli_sources})
    target_include_directories(mr_cli PUBLIC ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(mr_cli PUBLIC mr_bench millrace millrace_version mr_options
                          PRIVATE CLI11::CLI11 ${MR_FMT} nlohmann_json::nlohmann_json)
    # Parsing and printing: what matters here is the time to compile it. The slow header that most
    # commands share is compiled once; CLI11's, which costs every file that merely sees it, is kept
    # behind parser.h.
    target_compile_options(mr_cli PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>)
    target_precompile_headers(mr_cli PRIVATE <nlohmann/json.hpp>)
    millrace_together(mr_cli 24)
    # Kept apart because the Python package leaves it out (cmake/python.cmake).
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/cli/chat/edited_line.cpp PROPERTIES
                                SKIP_UNITY_BUILD_INCLUSION ON)
    set(home ${PROJECT_SOURCE_DIR})
    if(MILLRACE_PACKAGE)  # what is there on another machine is not ours
        set(home /nonexistent)
    endif()
    target_compile_definitions(mr_cli PRIVATE
        MR_BUNDLED_MODEL="${MILLRACE_BUNDLED_MODEL}"
        MR_SOURCE_MODELS="${home}/models" MR_SOURCE_PEERS="${home}/bench/peers")
    # Line editing and history in `chat`; without it a line is read as it comes.
    millrace_find_libedit()
    if(libedit)
        target_link_libraries(mr_cli PUBLIC ${libedit})
        set_source_files_properties(${PROJECT_SOURCE_DIR}/src/cli/chat/edited_line.cpp PROPERTIES
                                    COMPILE_DEFINITIONS MR_LIBEDIT=1)
    else()
        message(STATUS "libedit was not found: chat has no line editing")
    endif()
    # What `millrace --version` says.
    set(cuda_version "without CUDA")
    if(MILLRACE_HAS_CUDA)
        set(cuda_version "CUDA ${CUDAToolkit_VERSION}")
        if(NOT MR_CUDA_OPTIMIZED)
            string(APPEND cuda_version " (kernels not optimised)")
        endif()
    endif()
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/cli/version.cpp PROPERTIES
        COMPILE_DEFINITIONS
        "MR_COMPILER=\"${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}\";MR_CUDA_VERSION=\"${cuda_version}\"")
    add_executable(millrace_cli ${PROJECT_SOURCE_DIR}/src/cli/main.cpp)
    set_target_properties(millrace_cli PROPERTIES OUTPUT_NAME millrace
                          RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
    target_link_libraries(millrace_cli PRIVATE mr_cli)
    if(MILLRACE_PACKAGE)
        target_link_options(millrace_cli PRIVATE -static-libstdc++ -static-libgcc)
    endif()
    millrace_pages(millrace_cli millrace)
endif()
