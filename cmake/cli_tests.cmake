# The command line as a user drives it, and the installed package as another project uses it. Plain
# python3: nothing to install. They test the CPU engine; device*_test.py test the GPU's.
if(Python3_FOUND AND TARGET millrace_cli)
    # A program that MILLRACE_FAULT kills while it saves; the real one has no such code.
    add_executable(millrace_faulty ${PROJECT_SOURCE_DIR}/tests/cli/faulty.cpp)
    target_link_libraries(millrace_faulty PRIVATE mr_cli)
    # Kills a program at a system call.
    add_executable(millrace_kill_at ${PROJECT_SOURCE_DIR}/tests/cli/kill_at.cpp)
    target_link_libraries(millrace_kill_at PRIVATE mr_options)
    set(cli_environment
        "MILLRACE_DEVICE=cpu;MILLRACE_BIN=$<TARGET_FILE:millrace_cli>;MILLRACE_LAB=$<TARGET_FILE:millrace_lab>;MILLRACE_FAULTY=$<TARGET_FILE:millrace_faulty>;MILLRACE_KILL_AT=$<TARGET_FILE:millrace_kill_at>;MILLRACE_DATA=${MILLRACE_DATA};MILLRACE_SOURCE=${PROJECT_SOURCE_DIR};MILLRACE_BUILD=${PROJECT_BINARY_DIR};MILLRACE_CMAKE=${CMAKE_COMMAND};MILLRACE_CXX=${CMAKE_CXX_COMPILER};MILLRACE_SANITIZE=$<$<BOOL:${MILLRACE_SANITIZE}>:address,undefined>$<$<BOOL:${MILLRACE_TSAN}>:thread>")
    if(TARGET millrace_asan)  # otherwise the program itself is sanitized
        list(APPEND cli_environment "MILLRACE_ASAN=$<TARGET_FILE:millrace_asan>")
    else()
        list(APPEND cli_environment "MILLRACE_ASAN=$<TARGET_FILE:millrace_cli>")
    endif()
    file(GLOB cli_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/cli/*_test.py)
    foreach(test ${cli_tests})
        get_filename_component(name ${test} NAME_WE)
        string(REGEX REPLACE "_test$" "" name ${name})
        add_test(NAME cli.${name} COMMAND ${Python3_EXECUTABLE} -B ${test})
        # COST: start these early, so that short tests fill the cores at the end.
        set_tests_properties(cli.${name} PROPERTIES TIMEOUT 900 COST 40 ENVIRONMENT
            "${cli_environment}")
    endforeach()
    # The laboratory's: `make test-lab`.
    file(GLOB lab_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/lab/*_test.py)
    foreach(test ${lab_tests})
        get_filename_component(name ${test} NAME_WE)
        string(REGEX REPLACE "_test$" "" name ${name})
        add_test(NAME lab.${name} COMMAND ${Python3_EXECUTABLE} -B ${test})
        set_tests_properties(lab.${name} PROPERTIES TIMEOUT 900 LABELS lab ENVIRONMENT
            "${cli_environment};PYTHONPATH=${PROJECT_SOURCE_DIR}/tests/cli")
    endforeach()
    set_tests_properties(lab.device_experiments PROPERTIES LABELS "lab;gpu" RESOURCE_LOCK gpu)
    # Long tests of the server: `make test-serve`.
    add_test(NAME serve.hostile CONFIGURATIONS serve COMMAND ${Python3_EXECUTABLE} -B
             ${PROJECT_SOURCE_DIR}/tests/cli/hostile_test.py)
    add_test(NAME serve.soak CONFIGURATIONS serve COMMAND ${Python3_EXECUTABLE} -B
             ${PROJECT_SOURCE_DIR}/tests/cli/soak.py)
    set_tests_properties(serve.hostile serve.soak PROPERTIES LABELS serve TIMEOUT 7200 RUN_SERIAL TRUE
                         ENVIRONMENT "${cli_environment};MILLRACE_HOSTILE=100000")
    # As for test_gpu; `info` measures a GPU if there is one.
    set(gpu_tests cli.device cli.device_bench cli.device_ranks cli.device_serve)
    set_tests_properties(${gpu_tests} PROPERTIES LABELS gpu)
    set_tests_properties(${gpu_tests} cli.basics PROPERTIES RESOURCE_LOCK gpu)
endif()

# The Python package: a wheel from this build's objects, in its own virtual environment.
if(Python3_FOUND AND TARGET millrace_cli AND NOT MILLRACE_SANITIZE AND NOT MILLRACE_TSAN)
    add_test(NAME python.wheel COMMAND ${Python3_EXECUTABLE} -B
             ${PROJECT_SOURCE_DIR}/python/tests/run.py ${PROJECT_BINARY_DIR})
    set_tests_properties(python.wheel PROPERTIES TIMEOUT 1200 SKIP_RETURN_CODE 77 COST 1000)
    # The server as openai, anthropic, LangChain and curl see it.
    add_test(NAME python.clients COMMAND ${Python3_EXECUTABLE} -B
             ${PROJECT_SOURCE_DIR}/tests/clients/run.py ${PROJECT_BINARY_DIR})
    set_tests_properties(python.clients PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77 COST 500
                         LABELS serve)
endif()
