# Pages inside of the program. Each is a folder of plain files (index.html, page.css, scripts) that
# are joined into one:
#   src/serve/page    the chat page of `millrace serve`   -> build/page
#   src/observe/page  the page that shows runs as figures -> build/report_page
# A folder of the build gets
#   index.html  the page
#   policy.txt  its Content-Security-Policy, with hashes of its one script and one style
#   page.cpp    the page as bytes: mr::MODULE::page(); of `serve` also page_policy() and page_tag()
# The same file defines the targets and, by `cmake -P`, is what joins them: nothing else is needed.
set(scripts_of_serve i18n dom store markdown inline draw stream gauges message chat app)
set(scripts_of_observe units drawing table curves roofline timeline page)

function(millrace_page module folder)
    set(source ${PROJECT_SOURCE_DIR}/src/${module}/page)
    set(folder ${PROJECT_BINARY_DIR}/${folder})
    list(TRANSFORM scripts_of_${module} REPLACE "(.+)" "${source}/\\1.js" OUTPUT_VARIABLE inputs)
    add_custom_command(
        OUTPUT ${folder}/page.cpp ${folder}/index.html ${folder}/policy.txt
        COMMAND ${CMAKE_COMMAND} -DSOURCE=${source} -DFOLDER=${folder}
                -P ${PROJECT_SOURCE_DIR}/cmake/page.cmake
        DEPENDS ${inputs} ${source}/index.html ${source}/page.css
                ${PROJECT_SOURCE_DIR}/cmake/page.cmake
        COMMENT "Joining the page of ${module}" VERBATIM)
    add_library(${module}_page OBJECT ${folder}/page.cpp)
    target_include_directories(${module}_page PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${module}_page PRIVATE mr_options)
    target_sources(millrace PRIVATE $<TARGET_OBJECTS:${module}_page>)
endfunction()

if(NOT CMAKE_SCRIPT_MODE_FILE)
    millrace_page(serve page)
    millrace_page(observe report_page)
    return()
endif()
get_filename_component(module ${SOURCE} DIRECTORY)
get_filename_component(module ${module} NAME)

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

# The bytes of the file at path `file` as escapes of a C++ string literal, 32 bytes per line.
function(literal file out)
    file(READ ${file} hex HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" text "${hex}")
    string(REPEAT "." 128 line)
    string(REGEX REPLACE "(${line})" "\\1\"\n    \"" text "${text}")
    set(${out} "\"${text}\"" PARENT_SCOPE)
endfunction()

set(script "'use strict';\n")
foreach(name ${scripts_of_${module}})
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

# Nothing from elsewhere, no frame, no form; strings never become markup or code.
string(CONCAT policy "default-src 'none'; script-src 'sha256-${script_hash}'; "
    "style-src 'sha256-${style_hash}'; ")
if(module STREQUAL serve)  # `data:` is the icon in the page's head
    string(APPEND policy "img-src data:; connect-src 'self'; frame-ancestors 'none'; ")
endif()
string(APPEND policy "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'")
string(REPLACE "@POLICY@" "${policy}" html "${html}")  # of a file that no server sends
string(SHA256 tag "${html}")
string(SUBSTRING "${tag}" 0 32 tag)
file(WRITE ${FOLDER}/index.html "${html}")
file(WRITE ${FOLDER}/policy.txt "${policy}\n")
literal(${FOLDER}/index.html bytes)
set(more "")
if(module STREQUAL serve)
    set(more "
std::string_view page_policy() {
    return
        \"${policy}\";
}

std::string_view page_tag() { return \"\\\"${tag}\\\"\"; }
")
endif()
file(WRITE ${FOLDER}/page.cpp "// Made by cmake/page.cmake of src/${module}/page.
#include \"${module}/page/page.h\"

namespace mr::${module} {
namespace {

constexpr char kPage[] =
    ${bytes};

}  // namespace

std::string_view page() { return {kPage, sizeof(kPage) - 1}; }
${more}
}  // namespace mr::${module}
")
