# Multithreaded code under ThreadSanitizer, in every build type:
#   test_tsan   the tests that start threads, with the needed parts of the library compiled a second
#               time: without CUDA, and with the portable kernels only. Part of ctest.
# `make test PRESET=tsan` builds everything so. There the runtime may refuse to start where the
# kernel randomises addresses widely ("unexpected memory mapping"): `setarch $(uname -m) -R make
# test PRESET=tsan`.
if(MILLRACE_SANITIZE OR MILLRACE_TSAN)
    return()
endif()
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_FLAGS "-fsanitize=thread")
check_cxx_source_compiles("int main() {}" MILLRACE_TSAN_LINKS)
unset(CMAKE_REQUIRED_FLAGS)
if(NOT MILLRACE_TSAN_LINKS)
    millrace_no_sanitizer(thread MILLRACE_TSAN_LINKS "This compiler has no ThreadSanitizer (libtsan)"
        "races are not looked for")
    return()
endif()

# plain_options comes from fuzz.cmake: no -Werror, for the same reason.
add_library(mr_tsan_options INTERFACE)
target_link_libraries(mr_tsan_options INTERFACE fmt::fmt Threads::Threads
                      nlohmann_json::nlohmann_json)
target_compile_options(mr_tsan_options INTERFACE ${plain_options} -fsanitize=thread -g1 -O1 -UNDEBUG
                       $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)  # Asio's fences
target_link_options(mr_tsan_options INTERFACE -fsanitize=thread)
target_include_directories(mr_tsan_options INTERFACE ${PROJECT_SOURCE_DIR}/src
                           ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/tests)
target_compile_definitions(mr_tsan_options INTERFACE MR_PORTABLE_ONLY=1
                           MR_ISA=portable MR_ISA_portable=1)

# Left out. The linker takes these from the library, without instrumentation. It would take any other file that
# is missing here from there, too, and say nothing: tests/tsan/instrumented.py does.
set(tsan_left_out
    # What no thread of these tests runs: reports, the training run, the server behind its desk.
    decode/eval_page observe/own_file observe/page observe/roofline observe/run_page observe/run_report observe/trace
    train/layout train/measure train/plan/* train/report train/run_folder train/run_log train/run_look train/run_ranks
    train/run_setup train/sampler train/trainer
    serve/answer serve/api serve/api_generate serve/api_messages serve/api_request serve/api_structure
    serve/api_text serve/calls serve/fields serve/fingerprint serve/format_anthropic serve/format_openai
    serve/gate serve/grammars serve/lobby
    # What starts no thread: readers and writers of files, templates, schemas and their patterns.
    formats/bytes formats/gguf* formats/json* formats/llama2c formats/safetensors hub/*
    model/io/convert model/io/convert_gguf model/io/convert_huggingface model/io/convert_tensors
    model/io/generation model/io/known_keys model/io/load_diffusion model/io/model_folder
    model/io/load_gguf model/io/load_huggingface model/io/load_llama2c model/io/source model/io/write_model
    text/case_tables text/chat text/chat_tools text/chat_writer text/columns text/jinja/* text/letter_case
    text/tokenizer_gguf text/tokenizer_json text/tokenizer_json_steps text/tokenizer_json_writer
    text/tokenizer_llama2c text/unicode text/unicode_tables text/grammar/chars text/grammar/numbers text/grammar/regex
    text/grammar/regex_parse text/grammar/response_format text/grammar/schema_compiler
    text/grammar/schema_facts text/grammar/schema_nodes text/grammar/schema_values
    text/grammar/string_formats text/grammar/tools)
set(tsan_sources "")
foreach(module ${modules})
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${module}/*.cpp)
    list(APPEND tsan_sources ${sources})
endforeach()
list(FILTER tsan_sources EXCLUDE REGEX "_(test|bench|fuzz|cuda|mpi)\\.cpp$")
foreach(name ${tsan_left_out})
    string(REPLACE "*" ".*" name ${name})
    list(FILTER tsan_sources EXCLUDE REGEX "/src/${name}\\.cpp$")
endforeach()
add_library(mr_tsan STATIC ${tsan_sources})
# Several files at a time: each takes longer to read its headers than to instrument its code.
set_target_properties(mr_tsan PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 24)
target_precompile_headers(mr_tsan PRIVATE ${MR_COMMON_HEADERS})
target_link_libraries(mr_tsan PUBLIC mr_tsan_options)

set(tsan_tests core/thread_pool model/batch model/train decode/scheduler train/batches train/exchange
    train/host_link train/pack train/pipeline text/bpe_train observe/bandwidth serve/http
    serve/http_limits serve/desk serve/desk_queue)
list(TRANSFORM tsan_tests REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/tests/\\1_test.cpp")
list(APPEND tsan_tests ${PROJECT_SOURCE_DIR}/src/ops/linear/linear_test.cpp)
add_executable(test_tsan ${tsan_tests})
target_link_libraries(test_tsan PRIVATE mr_tsan millrace GTest::gtest_main)
# An object of the library defines more than what it is taken for; the first definition counts.
target_link_options(test_tsan PRIVATE -Wl,--allow-multiple-definition)
target_compile_options(test_tsan PRIVATE ${MR_FALSE_ALARMS})
target_precompile_headers(test_tsan PRIVATE <gtest/gtest.h> <fmt/format.h>)
millrace_together(test_tsan 7)
target_compile_definitions(test_tsan PRIVATE
    MR_TEST_DATA="${MILLRACE_DATA}" MR_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
# Left out: tests that take long for their values, not for their threads.
string(JOIN ":" too_long "*AgreeWithDouble" "*TenStepsOfAdamW*" "*AWrittenModelReadsBack*"
       Training.LearnsOneBatchByHeart Training.GrainsAreAddedUpInABinaryTree Pipeline.StagesTrainAsOneRankDoes
       Training.AModelThatTurnsNeighboursGoesOnAsItWas Memory.PeakGrowsWithWhatIsTouched
       Scheduler.AThousandSequencesHaveTheBitsTheyHaveAlone Linear.QuantisedBitsAreTheSameOnEveryPath)
# With the name of every test, so that one that hangs is known.
add_test(NAME tsan.threads COMMAND ${PROJECT_SOURCE_DIR}/scripts/tsan.sh $<TARGET_FILE:test_tsan>
         "--gtest_filter=-${too_long}")
set_tests_properties(tsan.threads PROPERTIES TIMEOUT 600 COST 100)
if(MILLRACE_ALLOW_NO_SANITIZERS)
    set_tests_properties(tsan.threads PROPERTIES SKIP_RETURN_CODE 77)
endif()
if(Python3_FOUND AND CMAKE_EXPORT_COMPILE_COMMANDS)
    add_test(NAME tsan.instrumented COMMAND ${Python3_EXECUTABLE} -B
             ${PROJECT_SOURCE_DIR}/tests/tsan/instrumented.py ${PROJECT_BINARY_DIR} ${tsan_left_out})
endif()
