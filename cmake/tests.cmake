# One test program per module: tests/MODULE/*_test.cpp and src/MODULE/**/*_test.cpp.
find_package(GTest REQUIRED)
include(GoogleTest)

# The slow header of every test is precompiled once. Its target is an executable, because an object
# library would be compiled with -fPIC but tests are with -fPIE.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/test_headers.cpp CONTENT "int main() {}\n")
add_executable(test_headers ${PROJECT_BINARY_DIR}/test_headers.cpp)
target_link_libraries(test_headers PRIVATE mr_options GTest::gtest fmt::fmt)
target_compile_options(test_headers PRIVATE $<$<NOT:$<CONFIG:Debug>>:-Og>)
target_precompile_headers(test_headers PRIVATE <gtest/gtest.h> <fmt/format.h>)

# Tests are optimised for compile time, not for speed: -Og.
function(millrace_quick_to_compile target)
    target_compile_options(${target} PRIVATE
        $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-Og> ${MR_FALSE_ALARMS})
    target_precompile_headers(${target} REUSE_FROM test_headers)
    millrace_together(${target} 12)
endfunction()

# A locale with decimal commas, for the tests that numbers in files do not depend on one. Where
# Debian's package `locales` is missing they use an installed one, or skip.
set(locale_environment "")
find_program(MILLRACE_LOCALEDEF localedef)
mark_as_advanced(MILLRACE_LOCALEDEF)
set(locales ${PROJECT_BINARY_DIR}/locales)
if(MILLRACE_LOCALEDEF AND EXISTS /usr/share/i18n/locales/de_DE AND NOT EXISTS ${locales}/de_DE.UTF-8)
    file(MAKE_DIRECTORY ${locales})
    execute_process(COMMAND ${MILLRACE_LOCALEDEF} -i de_DE -f UTF-8 ${locales}/de_DE.UTF-8
                    OUTPUT_QUIET ERROR_QUIET)
endif()
if(EXISTS ${locales}/de_DE.UTF-8)
    set(locale_environment ENVIRONMENT LOCPATH=${locales})
endif()

# A test's name has no value of its parameter: gtest prints the bytes of a struct, padding and pointers
# included, which differ from build to build, so that ctest --rerun-failed would not find the test.
function(millrace_discover target)
    gtest_discover_tests(${target} NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60
                         PROPERTIES TIMEOUT 300 ${locale_environment} ${ARGN})
endfunction()

foreach(module core observe ops formats hub text model decode train serve)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS
         ${PROJECT_SOURCE_DIR}/tests/${module}/*_test.cpp ${PROJECT_SOURCE_DIR}/src/${module}/*_test.cpp)
    list(FILTER sources EXCLUDE REGEX "_cuda_test\\.cpp$")
    if(sources)
        add_executable(test_${module} ${sources})
        target_include_directories(test_${module} PRIVATE ${PROJECT_SOURCE_DIR}/src
                                   ${PROJECT_SOURCE_DIR}/tests)
        target_link_libraries(test_${module} PRIVATE millrace mr_options GTest::gtest_main fmt::fmt
                              nlohmann_json::nlohmann_json)
        target_compile_definitions(test_${module} PRIVATE
            MR_TEST_DATA="${MILLRACE_DATA}" MR_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
        millrace_quick_to_compile(test_${module})
        millrace_discover(test_${module})
    endif()
endforeach()

# What bench/ and lab/ measure with, without a GPU. The laboratory's tests have the label `lab`.
foreach(folder bench lab)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*/*_test.cpp)
    list(FILTER sources EXCLUDE REGEX "_cuda_test\\.cpp$")
    add_executable(test_${folder} ${sources})
    target_include_directories(test_${folder} PRIVATE ${PROJECT_SOURCE_DIR}/src
                               ${PROJECT_SOURCE_DIR}/tests)
    target_compile_definitions(test_${folder} PRIVATE MR_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    target_link_libraries(test_${folder} PRIVATE mr_${folder} millrace mr_options GTest::gtest_main
                          fmt::fmt nlohmann_json::nlohmann_json)
    millrace_quick_to_compile(test_${folder})
endforeach()
millrace_discover(test_bench)
millrace_discover(test_lab LABELS lab)
# Instruction paths treat a NaN differently; the portable path behaves like x86's.
add_test(NAME portable.model COMMAND test_model --gtest_filter=*CheckNan*:*Stream*:Batch*)
set_tests_properties(portable.model PROPERTIES ENVIRONMENT MILLRACE_ISA=portable TIMEOUT 300)

# Tests that need a GPU: *_test.cu and *_cuda_test.cpp of src/, bench/ and lab/, and
# tests/gpu/*_test.{cu,cpp}, in one program labelled `gpu`. Those without kernels are C++, because
# nvcc is slower. Without a GPU they skip, or fail with MILLRACE_REQUIRE_GPU=1 in the environment.
# They run one at a time, because they compare free GPU memory and measure time.
#   MILLRACE_GPU_TESTS  ON: all are compiled if nvcc is found, GPU or not, so that a change which
#                       breaks one is seen at once. OFF: those with kernels are left out,
#                       which saves minutes of nvcc.
option(MILLRACE_GPU_TESTS "Compile tests with kernels of their own" ON)
if(MILLRACE_HAS_CUDA)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS
         ${PROJECT_SOURCE_DIR}/src/*_test.cu ${PROJECT_SOURCE_DIR}/src/*_cuda_test.cpp
         ${PROJECT_SOURCE_DIR}/bench/*_cuda_test.cpp ${PROJECT_SOURCE_DIR}/lab/*_cuda_test.cpp
         ${PROJECT_SOURCE_DIR}/tests/gpu/*_test.cu ${PROJECT_SOURCE_DIR}/tests/gpu/*_test.cpp)
    if(NOT MILLRACE_GPU_TESTS)
        list(FILTER sources EXCLUDE REGEX "\\.cu$")
        message(STATUS "CUDA: tests with kernels of their own are not compiled "
                       "(MILLRACE_GPU_TESTS=OFF)")
    endif()
    if(sources)
        add_executable(test_gpu ${sources})
        target_include_directories(test_gpu PRIVATE ${PROJECT_SOURCE_DIR}/src
                                   ${PROJECT_SOURCE_DIR}/tests)
        target_link_libraries(test_gpu PRIVATE mr_bench mr_lab millrace mr_options GTest::gtest_main
                              fmt::fmt nlohmann_json::nlohmann_json CUDA::cudart_static)
        target_compile_definitions(test_gpu PRIVATE MR_CUDA=1
            MR_TEST_DATA="${MILLRACE_DATA}" MR_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
        millrace_quick_to_compile(test_gpu)
        if(MILLRACE_GPU_TESTS)
            millrace_kernels_together(test_gpu kernels_tests
                src/ops/attention/paged/bits_test.cu src/ops/norm/norm_bits_test.cu
                src/ops/norm/norm_test.cu tests/gpu/device_test.cu tests/gpu/fault_test.cu)
        endif()
        millrace_discover(test_gpu LABELS gpu RESOURCE_LOCK gpu)
        # For `make sanitize-gpu`; not part of every run, because it takes minutes.
        add_test(NAME gpu.memcheck CONFIGURATIONS sanitize
                 COMMAND ${PROJECT_SOURCE_DIR}/scripts/sanitize_gpu.sh $<TARGET_FILE:test_gpu>)
        set_tests_properties(gpu.memcheck PROPERTIES TIMEOUT 1500 LABELS "gpu;sanitize"
                             RESOURCE_LOCK gpu SKIP_RETURN_CODE 77)
    endif()
endif()

# examples/attention.cpp checks one row of its results itself.
if(TARGET example_attention)
    foreach(shape "1000;4;64" "333;2;128")
        list(JOIN shape x name)
        add_test(NAME example.attention.${name}
                 COMMAND sh ${PROJECT_SOURCE_DIR}/tests/gpu/example.sh
                         $<TARGET_FILE:example_attention> ${shape})
        set_tests_properties(example.attention.${name} PROPERTIES LABELS gpu TIMEOUT 300
                             SKIP_RETURN_CODE 77)
    endforeach()
endif()

find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
    foreach(check arrows casts jobs json read_numbers)
        add_test(NAME house.${check} COMMAND ${Python3_EXECUTABLE}
                 ${PROJECT_SOURCE_DIR}/tests/house/${check}.py ${PROJECT_SOURCE_DIR})
    endforeach()
    # The scripts of docs/learn, on little: each one compares its results itself.
    set(learn_offload --matrix 65536 --reps 2)
    set(learn_sampler --vocab 5000 --rows 2)
    set(learn_attention --tokens 50,64 --tile 16)
    set(learn_overlap --part-ms 40 --chunks 1,3,8 --bytes 100000)
    foreach(script offload sampler attention overlap)
        add_test(NAME example.learn.${script} COMMAND ${Python3_EXECUTABLE}
                 ${PROJECT_SOURCE_DIR}/examples/learn/${script}.py ${learn_${script}})
        set_tests_properties(example.learn.${script} PROPERTIES TIMEOUT 300)
    endforeach()
    # The Chinese pages say what the English ones say.
    set(languages ${PROJECT_SOURCE_DIR}/tests/docs/languages.py)
    add_test(NAME docs.languages COMMAND ${Python3_EXECUTABLE} ${languages} ${PROJECT_SOURCE_DIR})
    add_test(NAME docs.languages.self_test COMMAND ${Python3_EXECUTABLE} ${languages} --self-test)
    add_test(NAME house.docker COMMAND ${Python3_EXECUTABLE} -B
             ${PROJECT_SOURCE_DIR}/tests/house/docker.py ${PROJECT_SOURCE_DIR} ${CMAKE_COMMAND})
    add_test(NAME house.deps COMMAND ${Python3_EXECUTABLE} -B
             ${PROJECT_SOURCE_DIR}/tests/house/deps.py ${PROJECT_SOURCE_DIR})
    add_test(NAME house.failed_tests COMMAND ${Python3_EXECUTABLE} -B
             ${PROJECT_SOURCE_DIR}/tests/house/failed_tests.py ${PROJECT_SOURCE_DIR} ${CMAKE_CTEST_COMMAND})
    add_test(NAME house.makefile COMMAND ${Python3_EXECUTABLE} -B
             ${PROJECT_SOURCE_DIR}/tests/house/makefile.py ${PROJECT_SOURCE_DIR})
    set_tests_properties(house.makefile PROPERTIES SKIP_RETURN_CODE 77)
    add_test(NAME house.names COMMAND ${Python3_EXECUTABLE} -B
             ${PROJECT_SOURCE_DIR}/tests/house/names.py ${PROJECT_BINARY_DIR} ${CMAKE_CTEST_COMMAND})
    add_test(NAME house.sanitizers COMMAND ${Python3_EXECUTABLE} -B
             ${PROJECT_SOURCE_DIR}/tests/house/sanitizers.py ${PROJECT_SOURCE_DIR} ${CMAKE_COMMAND}
             ${CMAKE_CTEST_COMMAND})
    add_test(NAME house.toolkit COMMAND ${Python3_EXECUTABLE} -B
             ${PROJECT_SOURCE_DIR}/tests/house/toolkit.py ${PROJECT_SOURCE_DIR} ${CMAKE_COMMAND})
endif()
include(${PROJECT_SOURCE_DIR}/cmake/fuzz.cmake)
include(${PROJECT_SOURCE_DIR}/cmake/serve_asan.cmake)
include(${PROJECT_SOURCE_DIR}/cmake/cli_tests.cmake OPTIONAL)
include(${PROJECT_SOURCE_DIR}/cmake/page_tests.cmake)
include(${PROJECT_SOURCE_DIR}/cmake/contributing_tests.cmake)
include(${PROJECT_SOURCE_DIR}/cmake/docs_tests.cmake)
include(${PROJECT_SOURCE_DIR}/cmake/tsan.cmake)  # after fuzz.cmake: it uses its plain_options
