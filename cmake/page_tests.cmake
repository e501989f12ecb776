# The chat page: quick_test.py in every run; the browser tests in `make test-serve` (-C serve), with
# Chromium, its driver and Selenium from Debian's packages, which only the system's python3 sees.
add_executable(page_print ${PROJECT_SOURCE_DIR}/tests/page/page_print.cpp)
target_include_directories(page_print PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(page_print PRIVATE serve_page mr_options)
if(Python3_FOUND)
    add_test(NAME page.quick COMMAND ${Python3_EXECUTABLE} -B
             ${PROJECT_SOURCE_DIR}/tests/page/quick_test.py)
    find_program(MILLRACE_SYSTEM_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
    if(NOT MILLRACE_SYSTEM_PYTHON)
        set(MILLRACE_SYSTEM_PYTHON ${Python3_EXECUTABLE})
    endif()
    foreach(test browser look real)
        add_test(NAME page.${test} CONFIGURATIONS serve COMMAND ${MILLRACE_SYSTEM_PYTHON} -B
                 ${PROJECT_SOURCE_DIR}/tests/page/${test}_test.py)
    endforeach()
    set_tests_properties(page.quick page.browser page.look page.real PROPERTIES LABELS serve
        TIMEOUT 60 ENVIRONMENT
        "MILLRACE_BUILD=${PROJECT_BINARY_DIR};MILLRACE_CMAKE=${CMAKE_COMMAND};MILLRACE_PAGE_PRINT=$<TARGET_FILE:page_print>;MILLRACE_BIN=$<TARGET_FILE:millrace_cli>;MILLRACE_SOURCE=${PROJECT_SOURCE_DIR}")
    set_tests_properties(page.browser page.look page.real PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77
                         RUN_SERIAL TRUE)  # they time frames
endif()
