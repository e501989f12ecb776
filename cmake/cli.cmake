# The command line: one file per command in src/cli, one per measurement in src/cli/bench.
# The default model. Only this line names its file.
set(MILLRACE_BUNDLED_MODEL storyteller.gguf)

# bench/ladder: `millrace bench ladder`.
file(GLOB ladder_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/ladder/*.cpp)
list(FILTER ladder_sources EXCLUDE REGEX "_test\\.cpp$")
add_library(mr_ladder STATIC ${ladder_sources})
target_include_directories(mr_ladder PUBLIC ${PROJECT_SOURCE_DIR}
                           PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(mr_ladder PUBLIC millrace PRIVATE mr_options fmt::fmt)
if(MILLRACE_HAS_CUDA)
    target_sources(mr_ladder PRIVATE ${PROJECT_SOURCE_DIR}/bench/ladder/matmul.cu)
    target_compile_definitions(mr_ladder PRIVATE MR_CUDA=1)
    target_link_libraries(mr_ladder PRIVATE CUDA::cudart_static)
endif()

# bench/ops: the measurements of single operations in `millrace bench`; bench/fusion, bench/context,
# bench/diffusion, bench/overlap, bench/precision, bench/serve and bench/streams: the commands of
# those names.
file(GLOB bench_ops_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/ops/*.cpp
     ${PROJECT_SOURCE_DIR}/bench/fusion/*.cpp ${PROJECT_SOURCE_DIR}/bench/context/*.cpp
     ${PROJECT_SOURCE_DIR}/bench/diffusion/*.cpp ${PROJECT_SOURCE_DIR}/bench/overlap/*.cpp
     ${PROJECT_SOURCE_DIR}/bench/precision/*.cpp ${PROJECT_SOURCE_DIR}/bench/serve/*.cpp
     ${PROJECT_SOURCE_DIR}/bench/streams/*.cpp)
list(FILTER bench_ops_sources EXCLUDE REGEX "_test\\.cpp$")
if(MILLRACE_HAS_CUDA)
    file(GLOB bench_ops_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/ops/*.cu
         ${PROJECT_SOURCE_DIR}/bench/context/*.cu ${PROJECT_SOURCE_DIR}/bench/diffusion/*.cu
         ${PROJECT_SOURCE_DIR}/bench/overlap/*.cu ${PROJECT_SOURCE_DIR}/bench/streams/*.cu)
    list(FILTER bench_ops_kernels EXCLUDE REGEX "_test\\.cu$")
else()
    set(bench_ops_kernels "")
    list(FILTER bench_ops_sources EXCLUDE REGEX "_cuda\\.cpp$")
endif()
add_library(mr_bench STATIC ${bench_ops_sources} ${bench_ops_kernels})
target_include_directories(mr_bench PUBLIC ${PROJECT_SOURCE_DIR} PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(mr_bench PUBLIC millrace PRIVATE mr_options fmt::fmt)
millrace_together(mr_bench 12)
if(MILLRACE_HAS_CUDA)
    target_compile_definitions(mr_bench PRIVATE MR_CUDA=1)
    millrace_kernels_together(mr_bench kernels_bench
        bench/ops/attention_measure.cu bench/ops/flash_measure.cu bench/ops/flash_unfused.cu
        bench/ops/gemm_measure.cu bench/ops/norm_measure.cu bench/overlap/kernels.cu
        bench/streams/work.cu bench/context/device_upkeep.cu)
    target_link_libraries(mr_bench PRIVATE CUDA::cudart_static)
endif()

file(GLOB_RECURSE cli_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cli/*.cpp)
if(cli_sources)
    find_package(CLI11 REQUIRED)
    # Everything but main(): the program and the fault-injecting one (cmake/cli_tests.cmake) each
    # have their own.
    list(REMOVE_ITEM cli_sources ${PROJECT_SOURCE_DIR}/src/cli/main.cpp)
    add_library(mr_cli OBJECT ${cli_sources})
    target_include_directories(mr_cli PUBLIC ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(mr_cli PUBLIC mr_bench mr_ladder millrace millrace_version mr_options
                          PRIVATE CLI11::CLI11 fmt::fmt nlohmann_json::nlohmann_json)
    # Parsing and printing only, so compile time matters most. The slow header that most commands
    # share is precompiled; CLI11's, which costs every file that includes it, is hidden behind
    # parser.h.
    target_compile_options(mr_cli PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>)
    target_precompile_headers(mr_cli PRIVATE <nlohmann/json.hpp>)
    millrace_together(mr_cli 24)
    # Kept apart because the Python package leaves it out (cmake/python.cmake).
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/cli/chat/edited_line.cpp PROPERTIES
                                SKIP_UNITY_BUILD_INCLUSION ON)
    target_compile_definitions(mr_cli PRIVATE
        MR_BUNDLED_MODEL="${MILLRACE_BUNDLED_MODEL}"
        MR_SOURCE_MODELS="${PROJECT_SOURCE_DIR}/models"
        MR_SOURCE_PEERS="${PROJECT_SOURCE_DIR}/bench/peers")
    # Line editing and history in `chat`; without libedit plain lines are read.
    find_package(PkgConfig QUIET)
    if(PKG_CONFIG_FOUND AND NOT MILLRACE_PYTHON)  # the Python module must not need libedit
        pkg_check_modules(LIBEDIT QUIET IMPORTED_TARGET libedit)
    endif()
    if(LIBEDIT_FOUND)
        target_link_libraries(mr_cli PUBLIC PkgConfig::LIBEDIT)
        set_source_files_properties(${PROJECT_SOURCE_DIR}/src/cli/chat/edited_line.cpp PROPERTIES
                                    COMPILE_DEFINITIONS MR_LIBEDIT=1)
    else()
        message(STATUS "libedit was not found: chat has no line editing")
    endif()
    # What `millrace --version` says.
    set(cuda_version "without CUDA")
    if(MILLRACE_HAS_CUDA)
        set(cuda_version "CUDA ${CUDAToolkit_VERSION}")
    endif()
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/cli/version.cpp PROPERTIES
        COMPILE_DEFINITIONS
        "MR_COMPILER=\"${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}\";MR_CUDA_VERSION=\"${cuda_version}\"")
    add_executable(millrace_cli ${PROJECT_SOURCE_DIR}/src/cli/main.cpp)
    set_target_properties(millrace_cli PROPERTIES OUTPUT_NAME millrace
                          RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
    target_link_libraries(millrace_cli PRIVATE mr_cli)
    # The program itself writes its man page and shell completions (cmake/install.cmake).
    file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/pages)
    add_custom_command(TARGET millrace_cli POST_BUILD COMMAND ${CMAKE_COMMAND}
                       -DPROGRAM=$<TARGET_FILE:millrace_cli> -DFOLDER=${PROJECT_BINARY_DIR}/pages
                       -P ${PROJECT_SOURCE_DIR}/cmake/pages.cmake)
endif()
