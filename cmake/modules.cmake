# millrace_module(NAME): adds the sources of src/NAME to the library.
# Left out: tests (*_test.cpp), benchmarks (*_bench.cpp), fuzz targets (*_fuzz.cpp), kernel files
# (*_kernels.cpp), which are compiled once per instruction set by millrace_isa_kernels(), and what
# needs the CUDA toolkit (*_cuda.cpp) or MPI (*_mpi.cpp), which millrace_cuda() and millrace_mpi()
# compile.
function(millrace_module name)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
    list(FILTER sources EXCLUDE REGEX "_(test|bench|fuzz|kernels|cuda|mpi)\\.cpp$")
    target_sources(millrace PRIVATE ${sources})
endfunction()

# The instruction paths of this machine's architecture. Each has a name (namespace and macro MR_ISA)
# and the flags its kernels are compiled with; src/core/cpu.h chooses among them at run time.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    set(MILLRACE_ISAS portable neon_dot neon_i8mm)
    set(MILLRACE_ISA_FLAGS_portable -fno-tree-vectorize)
    set(MILLRACE_ISA_FLAGS_neon_dot -march=armv8.2-a+dotprod+fp16)
    set(MILLRACE_ISA_FLAGS_neon_i8mm -march=armv8.2-a+dotprod+fp16+i8mm+bf16)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(MILLRACE_ISAS portable avx2 avx512)
    set(MILLRACE_ISA_FLAGS_portable -fno-tree-vectorize)
    set(MILLRACE_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
    set(MILLRACE_ISA_FLAGS_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq
        -mavx512vnni)
else()
    set(MILLRACE_ISAS portable)
    set(MILLRACE_ISA_FLAGS_portable "")
endif()

function(millrace_isa_kernels)
    file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/ops/*_kernels.cpp
         ${PROJECT_SOURCE_DIR}/src/observe/*_kernels.cpp)
    if(NOT kernels)
        return()
    endif()
    foreach(isa ${MILLRACE_ISAS})
        add_library(mr_isa_${isa} OBJECT ${kernels})
        target_include_directories(mr_isa_${isa} PRIVATE ${PROJECT_SOURCE_DIR}/src)
        target_link_libraries(mr_isa_${isa} PRIVATE mr_options)
        target_compile_definitions(mr_isa_${isa} PRIVATE MR_ISA=${isa} MR_ISA_${isa}=1)
        target_compile_options(mr_isa_${isa} PRIVATE ${MILLRACE_ISA_FLAGS_${isa}})
        if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
            target_compile_options(mr_isa_${isa} PRIVATE -O3)
        endif()
        target_sources(millrace PRIVATE $<TARGET_OBJECTS:mr_isa_${isa}>)
    endforeach()
endfunction()

# Compiles several files of the library at a time, as millrace_together() does for other targets:
# those of one module, and apart from them those that use the JSON library, which spend most of their
# time on its templates, the same ones each. Files with names of their own that a neighbour has, too,
# are alone, also where cmake/tsan.cmake compiles them, and those that need CUDA.
function(millrace_modules_together count)
    foreach(alone decode/api model/io/load_huggingface text/tokenizer_json
            ops/linear/linear_backward core/output_folder)
        set_source_files_properties(${PROJECT_SOURCE_DIR}/src/${alone}.cpp PROPERTIES
                                    SKIP_UNITY_BUILD_INCLUSION ON)
    endforeach()
    if(NOT MILLRACE_TOGETHER)
        return()
    endif()
    set(json_reports observe/page observe/roofline observe/run_report observe/trace)
    set(json_files formats/json formats/safetensors model/io/convert_huggingface
        text/tokenizer_json_writer)
    set(json_runs train/state_file train/options)
    foreach(group json_reports json_files json_runs)
        list(TRANSFORM ${group} REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/src/\\1.cpp")
        set_source_files_properties(${${group}} PROPERTIES UNITY_GROUP ${group})
    endforeach()
    get_target_property(all_sources millrace SOURCES)
    foreach(module ${ARGN})
        set(sources "")
        foreach(source ${all_sources})  # not by a regex: the clone's own path may have /src/core/ in it
            string(FIND "${source}" "${PROJECT_SOURCE_DIR}/src/${module}/" at)
            if(at EQUAL 0)
                list(APPEND sources ${source})
            endif()
        endforeach()
        list(REMOVE_ITEM sources ${json_reports} ${json_files} ${json_runs})
        set(number 0)
        foreach(source ${sources})
            math(EXPR group "${number} / ${count}")
            set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${module}_${group})
            math(EXPR number "${number} + 1")
        endforeach()
    endforeach()
    set_target_properties(millrace PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
