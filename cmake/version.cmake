# The version of this source tree. It is decided here and nowhere else; docs/packages.md says how.
#   include()                        sets MR_VERSION, MR_VERSION_NUMBER and MR_COMMIT
#   cmake -P version.cmake           prints MR_VERSION
#   cmake -DFOLDER=DIR -P ...        writes DIR/version.cpp and DIR/version.txt where they changed:
#                                    at every build, so that a commit compiles version.cpp alone
# MILLRACE_VERSION, if given, is the version: for trees without history, such as a Docker context.
#
# MR_VERSION is 0.2.0 for the commit with the tag v0.2.0, and for no other. Later commits have
# 0.2.0+37.g1a2b3c4d5: 37 commits after the tag. SemVer, Debian and Python all take this form, and
# dpkg and pip sort it between 0.2.0 and 0.2.1. MR_VERSION_NUMBER is 0.2.0 for both.
# MR_COMMIT is 1a2b3c4d5 or 1a2b3c4d5-dirty; empty where it is not known.
get_filename_component(mr_source ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)
set(MR_COMMIT "")
set(mr_describe "")  # v0.2.0-37-g1a2b3c4d5

# Output of `git ARGN`; empty where it fails: no git, no such tag, another user's clone.
function(millrace_git out)
    execute_process(COMMAND git --no-optional-locks -C ${mr_source} ${ARGN} OUTPUT_VARIABLE text
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
        set(text "")
    endif()
    set(${out} "${text}" PARENT_SCOPE)
endfunction()

if(EXISTS ${mr_source}/.git)  # a clone
    millrace_git(MR_COMMIT describe --always --dirty --exclude=* --abbrev=9)
    millrace_git(mr_describe describe --tags --long --abbrev=9 --match=v[0-9]* --exclude=*-*)
elseif(EXISTS ${mr_source}/PKG-INFO)  # an sdist: pip has written the version down
    file(READ ${mr_source}/PKG-INFO mr_text)
    if(NOT MILLRACE_VERSION AND mr_text MATCHES "\nVersion: ([^\n]+)")
        set(MILLRACE_VERSION ${CMAKE_MATCH_1})
    endif()
elseif(EXISTS ${mr_source}/.git_archival.txt)  # `git archive` has filled it in
    file(READ ${mr_source}/.git_archival.txt mr_text)
    if(mr_text MATCHES "commit: ([0-9a-f]+)")
        string(SUBSTRING ${CMAKE_MATCH_1} 0 9 MR_COMMIT)
    endif()
    if(mr_text MATCHES "describe: (v[^\n]+)")
        set(mr_describe ${CMAKE_MATCH_1})
    endif()
endif()

if(MILLRACE_VERSION)
    set(MR_VERSION ${MILLRACE_VERSION})
elseif(mr_describe MATCHES "^v([0-9.]+)(-([0-9]+)-(g[0-9a-f]+))?$")
    set(MR_VERSION ${CMAKE_MATCH_1})
    if(CMAKE_MATCH_3)  # not 0
        string(APPEND MR_VERSION "+${CMAKE_MATCH_3}.${CMAKE_MATCH_4}")
    endif()
else()
    # No tag within reach, as in a shallow clone: the newest release of the changelog, and the commit.
    file(READ ${mr_source}/CHANGELOG.md mr_text)
    string(REGEX MATCH "\n## \\[([0-9.]+)\\]" mr_text "${mr_text}")
    set(MR_VERSION "${CMAKE_MATCH_1}+unknown")
    if(MR_COMMIT)
        string(REGEX REPLACE "^([0-9a-f]+).*" "${CMAKE_MATCH_1}+g\\1" MR_VERSION ${MR_COMMIT})
    endif()
endif()
if(NOT MR_VERSION MATCHES "^([0-9]+\\.[0-9]+\\.[0-9]+)(\\+[a-z0-9]+(\\.[a-z0-9]+)*)?$")
    message(FATAL_ERROR "'${MR_VERSION}' is not a version: 1.2.3 or 1.2.3+45.g1a2b3c4d5 is one")
endif()
set(MR_VERSION_NUMBER ${CMAKE_MATCH_1})
if(NOT MR_COMMIT AND MR_VERSION MATCHES "[+.]g([0-9a-f]+)$")
    set(MR_COMMIT ${CMAKE_MATCH_1})
endif()

if(NOT CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
    # The number goes into files that CMake writes: a new one configures again.
    set(mr_tags "")
    if(EXISTS ${mr_source}/.git)
        millrace_git(mr_tags rev-parse --path-format=absolute --git-path refs/tags)
    endif()
    foreach(file ${mr_source}/CHANGELOG.md ${mr_tags})
        if(EXISTS ${file})
            set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
        endif()
    endforeach()
    return()
elseif(NOT FOLDER)
    execute_process(COMMAND ${CMAKE_COMMAND} -E echo ${MR_VERSION})
    return()
endif()
# file(CONFIGURE) leaves a file alone whose content stays the same.
file(CONFIGURE OUTPUT ${FOLDER}/version.txt CONTENT "${MR_VERSION}\n")
file(CONFIGURE OUTPUT ${FOLDER}/version.cpp CONTENT "// Made by cmake/version.cmake.
#include \"core/commit.h\"
#include \"millrace/millrace.h\"

const char* millrace::version() { return \"${MR_VERSION}\"; }

const char* mr::commit() { return \"${MR_COMMIT}\"; }
")
