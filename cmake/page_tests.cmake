# The chat page and the page of reports: quick_test.py and report_quick_test.py in every run; the
# browser's in `make test-serve` (-C serve), with Chromium, its driver and Selenium from Debian's
# packages, which only the system's python3 sees.
add_executable(page_print ${PROJECT_SOURCE_DIR}/tests/page/page_print.cpp)
target_include_directories(page_print PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(page_print PRIVATE serve_page mr_options)
if(Python3_FOUND)
    foreach(test quick report_quick)
        add_test(NAME page.${test} COMMAND ${Python3_EXECUTABLE} -B
                 ${PROJECT_SOURCE_DIR}/tests/page/${test}_test.py)
    endforeach()
    find_program(MILLRACE_SYSTEM_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
    if(NOT MILLRACE_SYSTEM_PYTHON)
        set(MILLRACE_SYSTEM_PYTHON ${Python3_EXECUTABLE})
    endif()
    foreach(test browser look real report)
        add_test(NAME page.${test} CONFIGURATIONS serve COMMAND ${MILLRACE_SYSTEM_PYTHON} -B
                 ${PROJECT_SOURCE_DIR}/tests/page/${test}_test.py)
    endforeach()
    set_tests_properties(page.quick page.report_quick page.browser page.look page.real page.report
        PROPERTIES LABELS serve
        TIMEOUT 300 ENVIRONMENT
        "MILLRACE_BUILD=${PROJECT_BINARY_DIR};MILLRACE_CMAKE=${CMAKE_COMMAND};MILLRACE_PAGE_PRINT=$<TARGET_FILE:page_print>;MILLRACE_BIN=$<TARGET_FILE:millrace_cli>;MILLRACE_SOURCE=${PROJECT_SOURCE_DIR};MILLRACE_TEST_TRAIN=$<TARGET_FILE:test_train>;MILLRACE_TEST_LAB=$<TARGET_FILE:test_lab>")
    set_tests_properties(page.browser page.look page.real page.report PROPERTIES SKIP_RETURN_CODE 77
                         RUN_SERIAL TRUE)  # they time frames
endif()
