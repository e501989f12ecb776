# The documentation: links resolve, every page is reached, and commands are run or marked as not run.
if(Python3_FOUND)
    set(docs_tests ${PROJECT_SOURCE_DIR}/tests/docs)
    add_test(NAME docs.links COMMAND ${Python3_EXECUTABLE} -B ${docs_tests}/links.py
             ${PROJECT_SOURCE_DIR})
    add_test(NAME docs.links.self_test COMMAND ${Python3_EXECUTABLE} -B ${docs_tests}/links.py
             --self-test)
    # The README's picture is what its recording gives.
    add_test(NAME docs.picture COMMAND ${Python3_EXECUTABLE} -B
             ${PROJECT_SOURCE_DIR}/docs/pictures/terminal.py check)
    if(TARGET millrace_cli)
        add_test(NAME docs.commands COMMAND ${Python3_EXECUTABLE} -B ${docs_tests}/commands.py
                 ${PROJECT_SOURCE_DIR})
        add_test(NAME docs.commands.self_test COMMAND ${Python3_EXECUTABLE} -B
                 ${docs_tests}/commands.py --self-test)
        add_test(NAME docs.what_fits COMMAND ${Python3_EXECUTABLE} -B ${docs_tests}/what_fits.py)
        set_tests_properties(docs.what_fits docs.commands docs.commands.self_test PROPERTIES TIMEOUT 600 ENVIRONMENT
            "MILLRACE_DEVICE=cpu;MILLRACE_BIN=$<TARGET_FILE:millrace_cli>")
        set_tests_properties(docs.commands PROPERTIES COST 40)
    endif()
endif()
