# The worked examples of docs/contributing/, followed on a copy of the tree with the objects of this build
# (tests/contributing/follow.py), and what `make check` would do for a change.
if(NOT Python3_FOUND)
    return()
endif()
foreach(check pages check)
    add_test(NAME contributing.${check} COMMAND ${Python3_EXECUTABLE} -B
             ${PROJECT_SOURCE_DIR}/tests/contributing/${check}_test.py)
    set_tests_properties(contributing.${check} PROPERTIES TIMEOUT 300)
endforeach()
# The follower asks ninja about objects and their headers.
if(CMAKE_GENERATOR STREQUAL "Ninja" AND CMAKE_EXPORT_COMPILE_COMMANDS AND TARGET millrace_cli)
    foreach(example op family quantisation command)
        add_test(NAME contributing.${example} COMMAND ${Python3_EXECUTABLE} -B
                 ${PROJECT_SOURCE_DIR}/tests/contributing/follow.py ${example}
                 --build ${PROJECT_BINARY_DIR})
        set_tests_properties(contributing.${example} PROPERTIES TIMEOUT 300 COST 60)
    endforeach()
endif()
