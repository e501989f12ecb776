# The readers of untrusted files under AddressSanitizer and UBSan, in every build type:
#   fuzz_NAME          src/**/NAME_fuzz.cpp with tests/fuzz/driver.cpp: replays tests/fuzz/corpus/NAME,
#                      then a bounded, deterministic number of mutations of it. Part of ctest.
#   test_MODULE_asan   the module's unit tests, again. Part of ctest.
#   NAME_libfuzzer     the same target for coverage-guided fuzzing by hand: clang, MILLRACE_FUZZ=ON.
# Only the readers and their dependencies are compiled a second time: core, formats, text,
# ops/quant, the part of model that opens files and the reader of token shards.
option(MILLRACE_FUZZ "Build the libFuzzer programs too (needs clang)" OFF)
option(MILLRACE_ALLOW_NO_SANITIZERS "Go on where the sanitizers do not run" OFF)
set(MILLRACE_FUZZ_COUNT 20000 CACHE STRING "Mutations per fuzz target in ctest")

if(MILLRACE_TSAN)  # the sanitizers exclude each other
    return()
endif()
# MILLRACE_SANITIZE gives every target the sanitizers already.
set(address -fsanitize=address -fno-omit-frame-pointer)
# Without the check of stack variables used after their function returned, which g++ 13 and later
# have on by default: every frame that an exception leaves makes it slower, and asan.text took over
# 5 minutes instead of 20 s. MILLRACE_SANITIZE has the compiler's default.
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    list(APPEND address -fsanitize-address-use-after-return=never)
else()
    list(APPEND address --param=asan-use-after-return=0)
endif()
# Without four checks that over a third of the compile time would go to: AddressSanitizer reports a
# null pointer and one past an object when it is used, and no object here is cast down.
set(undefined -fsanitize=undefined -fno-sanitize=null,object-size,pointer-overflow,vptr
    -fno-sanitize-recover=all)
include(CheckCXXSourceRuns)
set(CMAKE_REQUIRED_FLAGS "-fsanitize=address,undefined")
check_cxx_source_runs("int main(int n, char**) { int* p = new int(n); int v = *p; delete p; return v - n; }"
                      MILLRACE_SANITIZERS_RUN)
unset(CMAKE_REQUIRED_FLAGS)
# `make run` builds no test, so where a sanitizer is missing a test fails, and not the configure. The
# next configure looks for it again.
function(millrace_no_sanitizer name found problem consequence)
    unset(${found} CACHE)
    message(STATUS "${problem}: ${consequence}")
    if(NOT MILLRACE_ALLOW_NO_SANITIZERS)
        set(script ${PROJECT_BINARY_DIR}/sanitizers_missing_${name}.cmake)
        file(CONFIGURE OUTPUT ${script} CONTENT "message(FATAL_ERROR \"${problem}: install it, or \
configure with -DMILLRACE_ALLOW_NO_SANITIZERS=ON; then ${consequence}\")\n")
        add_test(NAME sanitizers.missing.${name} COMMAND ${CMAKE_COMMAND} -P ${script})
    endif()
endfunction()
if(NOT MILLRACE_SANITIZERS_RUN)
    millrace_no_sanitizer(address MILLRACE_SANITIZERS_RUN
        "This compiler's AddressSanitizer does not run here"
        "the readers are tested and fuzzed without it")
    set(address "")
    set(undefined "")
endif()

# With line numbers. Not -Werror: instrumented code triggers warnings that the plain build, which
# does use -Werror, does not have.
get_target_property(plain_options mr_options INTERFACE_COMPILE_OPTIONS)
list(REMOVE_ITEM plain_options -Werror "$<${MR_CXX_ONLY}:-Werror>")
add_library(mr_sanitized_options INTERFACE)
target_link_libraries(mr_sanitized_options INTERFACE fmt::fmt Threads::Threads
                      nlohmann_json::nlohmann_json)
target_compile_options(mr_sanitized_options INTERFACE ${plain_options} ${address} -g1 -UNDEBUG)
target_link_options(mr_sanitized_options INTERFACE ${address} ${undefined})
target_include_directories(mr_sanitized_options INTERFACE ${PROJECT_SOURCE_DIR}/src
                           ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/tests)

file(GLOB_RECURSE reader_sources CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/src/core/*.cpp ${PROJECT_SOURCE_DIR}/src/formats/*.cpp
     ${PROJECT_SOURCE_DIR}/src/hub/*.cpp
     ${PROJECT_SOURCE_DIR}/src/text/*.cpp ${PROJECT_SOURCE_DIR}/src/ops/quant/*.cpp
     ${PROJECT_SOURCE_DIR}/src/model/io/load*.cpp)
foreach(name names io/generation io/known_keys io/random io/source spec)  # load*.cpp needs them
    list(APPEND reader_sources ${PROJECT_SOURCE_DIR}/src/model/${name}.cpp)
endforeach()
list(APPEND reader_sources ${PROJECT_SOURCE_DIR}/src/train/shards.cpp)
list(FILTER reader_sources EXCLUDE REGEX "_(test|bench|fuzz|kernels|cuda|mpi)\\.cpp$")
# A unity build, with the users of the slow JSON header next to each other: reading the headers
# takes as long as instrumenting the code.
set(json_sources ${reader_sources})
list(FILTER json_sources INCLUDE REGEX "json(_writer)?\\.cpp$|safetensors|huggingface")
list(REMOVE_ITEM reader_sources ${json_sources})
list(PREPEND reader_sources ${json_sources})
# formats and text are a separate library, shared with the sanitized server (serve_asan.cmake).
set(text_sources ${reader_sources})
list(FILTER text_sources INCLUDE REGEX "/src/(formats|text)/")
set(other_sources ${reader_sources})
list(REMOVE_ITEM other_sources ${text_sources})
add_library(mr_sanitized_text OBJECT ${text_sources})
add_library(mr_sanitized STATIC ${other_sources} $<TARGET_OBJECTS:mr_sanitized_text>)
foreach(target mr_sanitized_text mr_sanitized)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 24)
    target_link_libraries(${target} PUBLIC mr_sanitized_options)
    target_compile_options(${target} PRIVATE ${undefined} -Og)
endforeach()
# A fifth of the compile time, and needless where no pointer to bytes becomes one to numbers
# (tests/house/casts.py).
target_compile_options(mr_sanitized_text PRIVATE -fno-sanitize=alignment)

# A hostile count must not become an allocation: no test file is large, so a limit applies. Leak
# detection is off, because it needs ptrace, which containers may forbid.
set(fuzz_environment "ASAN_OPTIONS=detect_leaks=0:max_allocation_size_mb=512:abort_on_error=0"
    "UBSAN_OPTIONS=print_stacktrace=1")

add_library(mr_fuzz_driver OBJECT ${PROJECT_SOURCE_DIR}/tests/fuzz/driver.cpp)
target_link_libraries(mr_fuzz_driver PRIVATE mr_sanitized_options)
target_compile_options(mr_fuzz_driver PRIVATE -Og)

if(MILLRACE_FUZZ AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    add_library(mr_covered STATIC ${reader_sources})
    target_link_libraries(mr_covered PUBLIC mr_sanitized_options)
    target_compile_options(mr_covered PUBLIC -fsanitize=fuzzer-no-link ${undefined} -Og)
endif()

file(GLOB_RECURSE fuzz_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/formats/*_fuzz.cpp
     ${PROJECT_SOURCE_DIR}/src/text/*_fuzz.cpp ${PROJECT_SOURCE_DIR}/src/model/*_fuzz.cpp
     ${PROJECT_SOURCE_DIR}/src/train/*_fuzz.cpp)
foreach(source ${fuzz_sources})
    get_filename_component(name ${source} NAME_WE)
    string(REGEX REPLACE "_fuzz$" "" name ${name})
    add_executable(fuzz_${name} ${source} $<TARGET_OBJECTS:mr_fuzz_driver>)
    target_link_libraries(fuzz_${name} PRIVATE mr_sanitized)
    target_compile_options(fuzz_${name} PRIVATE ${undefined} -Og)
    add_test(NAME fuzz.${name} COMMAND fuzz_${name}
             ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name} 1 ${MILLRACE_FUZZ_COUNT})
    set_tests_properties(fuzz.${name} PROPERTIES TIMEOUT 300 COST 50 ENVIRONMENT "${fuzz_environment}")
    if(MILLRACE_FUZZ AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
        add_executable(${name}_libfuzzer ${source})
        target_link_libraries(${name}_libfuzzer PRIVATE mr_covered)
        target_link_options(${name}_libfuzzer PRIVATE -fsanitize=fuzzer)
    endif()
endforeach()

# Left out: tests that take long for their values; shorter ones lead through the same code.
string(JOIN ":" too_long GgufVocabulary.SurvivesWriting GrammarWalk.OtherTokenizers GrammarWalk.Threads
       Gpt2.JsonAndGgufAgree BpeTrain.DoesNotDependOnThreadsOrOrder SentencePiece.DerivedScoresAgreeWithMerges)
# The objects of the module's own test program, which have no sanitizer: compiling the tests once more
# takes as long as running them. The objects of formats and text come first, so that of what both have
# (templates, inline functions) the linker takes the sanitized code.
foreach(module formats text)
    set(sources "")
    if(module STREQUAL "formats")
        set(sources ${PROJECT_SOURCE_DIR}/src/ops/quant/quant_test.cpp)
    endif()
    add_executable(test_${module}_asan $<TARGET_OBJECTS:mr_sanitized_text> $<TARGET_OBJECTS:test_${module}>
                   ${sources})
    target_link_libraries(test_${module}_asan PRIVATE mr_sanitized GTest::gtest_main)
    target_compile_options(test_${module}_asan PRIVATE -O0)
    target_compile_definitions(test_${module}_asan PRIVATE
        MR_TEST_DATA="${MILLRACE_DATA}" MR_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    set_target_properties(test_${module}_asan PROPERTIES LINKER_LANGUAGE CXX)
    add_test(NAME asan.${module} COMMAND test_${module}_asan "--gtest_filter=-${too_long}")
    set_tests_properties(asan.${module} PROPERTIES TIMEOUT 900 COST 100 ENVIRONMENT "${fuzz_environment}")
endforeach()
