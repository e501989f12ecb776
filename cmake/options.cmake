# Flags every target of the project shares.
add_library(mr_options INTERFACE)
set(MR_CXX_ONLY $<COMPILE_LANGUAGE:CXX>)
target_compile_options(mr_options INTERFACE
    $<${MR_CXX_ONLY}:-Wall -Wextra -fno-math-errno -fno-trapping-math>)
set(line_info -lineinfo)  # for profilers; with it objects are up to four times as large
if(MILLRACE_PACKAGE)
    set(line_info "")
endif()
target_compile_options(mr_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;--expt-relaxed-constexpr;${line_info};-t0>")
# Contraction would let the compiler fuse a*b+c on one path and not on another: results of one
# instruction path must not depend on inlining. Kernels ask for fma where they want it.
target_compile_options(mr_options INTERFACE $<${MR_CXX_ONLY}:-ffp-contract=off>)
# ccache compares preprocessed text, which must name the precompiled header.
if(CCACHE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(mr_options INTERFACE $<${MR_CXX_ONLY}:-fpch-preprocess>)
endif()
# g++ 12 reports false overflows in string concatenation, depending on -O, on precompiled headers
# and on the length of the source's path (GCC bugs 105329 and 105651).
set(MR_FALSE_ALARMS "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    foreach(alarm array-bounds restrict stringop-overflow stringop-overread)
        list(APPEND MR_FALSE_ALARMS $<${MR_CXX_ONLY}:-Wno-${alarm}>)
    endforeach()
endif()
if(MILLRACE_PACKAGE)  # messages name files of the source, not folders of the machine
    target_compile_options(mr_options INTERFACE
        $<${MR_CXX_ONLY}:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>)
endif()
if(MILLRACE_WERROR)
    target_compile_options(mr_options INTERFACE $<${MR_CXX_ONLY}:-Werror>
        "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
endif()
if(MILLRACE_SANITIZE)
    target_compile_options(mr_options INTERFACE -fsanitize=address,undefined
                           -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(mr_options INTERFACE -fsanitize=address,undefined)
endif()
# This preset has no -Werror: g++ 12 reports false overflows in instrumented vector code.
if(MILLRACE_TSAN)
    if(MILLRACE_SANITIZE)
        message(FATAL_ERROR "MILLRACE_SANITIZE and MILLRACE_TSAN: one program has one of them")
    endif()
    target_compile_options(mr_options INTERFACE -fsanitize=thread)
    target_link_options(mr_options INTERFACE -fsanitize=thread)
endif()

# millrace_together(TARGET COUNT): compiles COUNT files of TARGET at a time (unity build), which
# takes about half as long: shared headers are read once and templates instantiated once. All names
# in TARGET must differ, also those in unnamed namespaces; a test file whose names clash with
# another's has a namespace named after it. MILLRACE_TOGETHER=OFF suits work on a single file.
function(millrace_together target count)
    if(MILLRACE_TOGETHER)
        set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${count})
    endif()
endfunction()

# millrace_kernels_together(TARGET NAME FILE...): compiles these .cu files of TARGET as one, NAME.cu.
# Every .cu takes 2.4 s before its first kernel, so short ones are joined; the same rule for names.
# FILEs are relative to the source folder.
function(millrace_kernels_together target name)
    if(NOT MILLRACE_TOGETHER)
        return()
    endif()
    set(content "")
    foreach(file ${ARGN})
        set(path ${PROJECT_SOURCE_DIR}/${file})
        if(NOT EXISTS ${path})
            message(FATAL_ERROR "${file}: ${name}.cu is to include it, and it is not there")
        endif()
        # A name that it brings in is hidden by a neighbour's of that name, without an error.
        file(STRINGS ${path} using REGEX "using namespace")
        if(using)
            message(FATAL_ERROR "${file}: has a using-directive, and cannot be a part of ${name}.cu")
        endif()
        set_source_files_properties(${path} PROPERTIES HEADER_FILE_ONLY ON)  # not compiled alone
        string(APPEND content "#include \"${path}\"\n")
    endforeach()
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/together/${name}.cu CONTENT "${content}" @ONLY)
    target_sources(${target} PRIVATE ${PROJECT_BINARY_DIR}/together/${name}.cu)
endfunction()
