# The chat page of `millrace serve`: the files of src/serve/page joined into one, in the program.
#   build/page/index.html  the page as it is served
#   build/page/policy.txt  its Content-Security-Policy, with hashes of its one script and one style
#   build/page/page.cpp    both as bytes: mr::serve::page(), page_policy() and page_tag() (page.h)
# This file defines the target and, run by `cmake -P`, joins the files: no other tool is needed.
set(page_scripts i18n dom store markdown inline draw stream gauges message chat app)

if(NOT CMAKE_SCRIPT_MODE_FILE)
    set(page_source ${PROJECT_SOURCE_DIR}/src/serve/page)
    set(page_folder ${PROJECT_BINARY_DIR}/page)
    list(TRANSFORM page_scripts REPLACE "(.+)" "${page_source}/\\1.js" OUTPUT_VARIABLE page_inputs)
    add_custom_command(
        OUTPUT ${page_folder}/page.cpp ${page_folder}/index.html ${page_folder}/policy.txt
        COMMAND ${CMAKE_COMMAND} -DSOURCE=${page_source} -DFOLDER=${page_folder}
                -P ${CMAKE_CURRENT_LIST_FILE}
        DEPENDS ${page_inputs} ${page_source}/index.html ${page_source}/page.css
                ${CMAKE_CURRENT_LIST_FILE}
        COMMENT "Joining the chat page" VERBATIM)
    add_library(serve_page OBJECT ${page_folder}/page.cpp)
    target_include_directories(serve_page PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(serve_page PRIVATE mr_options)
    target_sources(millrace PRIVATE $<TARGET_OBJECTS:serve_page>)
    return()
endif()

# The base64 of `hex`, an even number of hexadecimal digits.
function(base64 hex out)
    set(alphabet "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
    set(text "")
    while(NOT hex STREQUAL "")
        string(LENGTH "${hex}" length)  # three bytes become four letters
        string(SUBSTRING "${hex}0000" 0 6 three)
        math(EXPR bits "0x${three}")
        foreach(shift 18 12 6 0)
            math(EXPR digit "(${bits} >> ${shift}) & 63")
            string(SUBSTRING "${alphabet}" ${digit} 1 letter)
            string(APPEND text "${letter}")
        endforeach()
        if(length LESS 6)
            math(EXPR missing "(6 - ${length}) / 2")
            string(LENGTH "${text}" end)
            math(EXPR end "${end} - ${missing}")
            string(SUBSTRING "${text}" 0 ${end} text)
            string(REPEAT "=" ${missing} padding)
            string(APPEND text "${padding}")
            break()
        endif()
        string(SUBSTRING "${hex}" 6 -1 hex)
    endwhile()
    set(${out} "${text}" PARENT_SCOPE)
endfunction()

# The bytes of the file at path `file` as escapes of a C++ string literal, 32 bytes a line.
function(literal file out)
    file(READ ${file} hex HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" text "${hex}")
    string(REPEAT "." 128 line)
    string(REGEX REPLACE "(${line})" "\\1\"\n    \"" text "${text}")
    set(${out} "\"${text}\"" PARENT_SCOPE)
endfunction()

set(script "'use strict';\n")
foreach(name ${page_scripts})
    file(READ ${SOURCE}/${name}.js text)
    string(APPEND script "\n// ${name}.js\n${text}")
endforeach()
file(READ ${SOURCE}/page.css style)
file(READ ${SOURCE}/index.html html)
foreach(part style script)
    string(TOUPPER ${part} mark)
    string(FIND "${${part}}" "</${part}" inside)
    if(NOT inside EQUAL -1)
        message(FATAL_ERROR "the page's ${part} would end itself: it has '</${part}'")
    endif()
    string(FIND "${html}" "<${part}>@${mark}@</${part}>" place)
    if(place EQUAL -1)
        message(FATAL_ERROR "${SOURCE}/index.html has no <${part}>@${mark}@</${part}>")
    endif()
    string(REPLACE "@${mark}@" "${${part}}" html "${html}")
    string(SHA256 hash "${${part}}")
    base64(${hash} ${part}_hash)
endforeach()

# Nothing from other origins, no frames, no forms; strings never become markup or code. `data:`
# allows the icon in the page's head.
string(CONCAT policy "default-src 'none'; script-src 'sha256-${script_hash}'; "
    "style-src 'sha256-${style_hash}'; img-src data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'")
string(SHA256 tag "${html}")
string(SUBSTRING "${tag}" 0 32 tag)
file(WRITE ${FOLDER}/index.html "${html}")
file(WRITE ${FOLDER}/policy.txt "${policy}\n")
literal(${FOLDER}/index.html bytes)
file(WRITE ${FOLDER}/page.cpp "// Made by cmake/page.cmake of src/serve/page.
#include \"serve/page/page.h\"

namespace mr::serve {
namespace {

constexpr char kPage[] =
    ${bytes};

}  // namespace

std::string_view page() { return {kPage, sizeof(kPage) - 1}; }

std::string_view page_policy() {
    return
        \"${policy}\";
}

std::string_view page_tag() { return \"\\\"${tag}\\\"\"; }

}  // namespace mr::serve
")
