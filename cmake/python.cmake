# The module of the Python package, python/millrace/_core. `pip install .` switches it on; it links
# the objects of an existing build, or compiles the engine like any other build.
#   MILLRACE_PYTHON      build it
#   MILLRACE_BUILD_DIR   a build whose objects are linked, brought up to date first; default:
#                        build/release if it exists. OFF: compile everything here.
set(python_link millrace_python_link.cmake)

# Every build writes down the objects and libraries that a module needs.
function(millrace_python_link)
    set(libraries $<TARGET_FILE:mr_bench> $<TARGET_FILE:millrace>
        $<TARGET_FILE:millrace_version>)
    if(MILLRACE_HAS_CUDA)
        list(APPEND libraries $<TARGET_FILE:CUDA::cudart_static> rt)
    endif()
    string(JOIN "\n" content
           "set(MILLRACE_OBJECTS \"$<TARGET_OBJECTS:mr_cli>\")"
           "set(MILLRACE_LIBRARIES \"${libraries}\")"
           "set(MR_FMT \"${MR_FMT}\")"
           "set(MILLRACE_HAS_CUDA \"${MILLRACE_HAS_CUDA}\")\n")
    file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/${python_link} CONTENT "${content}")
endfunction()

# Sets the variables of python_link to the objects and libraries of MILLRACE_BUILD_DIR.
macro(millrace_python_reuse)
    execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/jobs.sh OUTPUT_VARIABLE jobs
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
    message(STATUS "Python: the objects of ${MILLRACE_BUILD_DIR}")
    execute_process(COMMAND ${CMAKE_COMMAND} --build ${MILLRACE_BUILD_DIR} -j ${jobs}
                            --target mr_cli mr_bench millrace millrace_version
                    COMMAND_ERROR_IS_FATAL ANY)
    include(${MILLRACE_BUILD_DIR}/${python_link})
    list(FILTER MILLRACE_OBJECTS INCLUDE REGEX "\\.o$")  # not the precompiled header
    # With line editing, importing the package would need libedit on every machine.
    list(FILTER MILLRACE_OBJECTS EXCLUDE REGEX "/edited_line\\.cpp\\.o$")
endmacro()

function(millrace_python_module)
    find_package(Python 3.9 REQUIRED
                 COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})
    execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
                    OUTPUT_VARIABLE nanobind_DIR OUTPUT_STRIP_TRAILING_WHITESPACE
                    COMMAND_ERROR_IS_FATAL ANY)
    find_package(nanobind CONFIG REQUIRED PATHS ${nanobind_DIR} NO_DEFAULT_PATH)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/python/src/*.cpp)
    # From Python 3.12 on, one module (stable ABI) serves all later versions.
    nanobind_add_module(_core STABLE_ABI NB_STATIC NB_SUPPRESS_WARNINGS ${sources})
    # Unity build: most of the time goes into reading the same headers.
    foreach(binder nanobind-static nanobind-static-abi3)
        if(TARGET ${binder})
            set_target_properties(${binder} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
        endif()
    endforeach()
    target_precompile_headers(_core PRIVATE <nanobind/nanobind.h> <functional> <memory> <string>
                              <vector> ${PROJECT_SOURCE_DIR}/src/decode/scheduler.h)
    target_include_directories(_core PRIVATE ${PROJECT_SOURCE_DIR}/src
                               ${PROJECT_SOURCE_DIR}/include)
    if(MILLRACE_HAS_CUDA)
        target_compile_definitions(_core PRIVATE MR_CUDA=1)
    endif()
    set_target_properties(_core PROPERTIES INSTALL_RPATH "$ORIGIN")
    set(exports ${PROJECT_SOURCE_DIR}/cmake/python.map)
    target_link_options(_core PRIVATE -Wl,--version-script=${exports})
    target_link_libraries(_core PRIVATE ${ARGN} mr_options ${MR_FMT} nlohmann_json::nlohmann_json
                          Threads::Threads ${CMAKE_DL_LIBS})
    install(TARGETS _core LIBRARY DESTINATION millrace COMPONENT python)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/ DESTINATION millrace/models COMPONENT python
            FILES_MATCHING PATTERN "*.gguf")
    get_target_property(type fmt::fmt TYPE)
    if(type STREQUAL "SHARED_LIBRARY" AND MR_FMT STREQUAL "fmt::fmt")  # which another machine may not have
        install(FILES $<TARGET_FILE:fmt::fmt> DESTINATION millrace COMPONENT python
                RENAME $<TARGET_SONAME_FILE_NAME:fmt::fmt>)
    endif()
endfunction()
