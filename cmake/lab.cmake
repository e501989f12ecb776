# The laboratory (lab/): millrace-lab, whose experiments answer a question once, a folder each. It uses
# everything, and nothing uses it. FOLDER/command.cpp: the options of an experiment and its printing.
if(NOT TARGET mr_cli)
    return()
endif()
file(GLOB lab_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/lab/*/*.cpp)
list(FILTER lab_sources EXCLUDE REGEX "_test\\.cpp$")
set(lab_kernels "")
if(MILLRACE_HAS_CUDA)
    file(GLOB lab_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/lab/*/*.cu)
    list(FILTER lab_kernels EXCLUDE REGEX "_test\\.cu$")
else()
    list(FILTER lab_sources EXCLUDE REGEX "_cuda\\.cpp$")
endif()
set(lab_commands ${lab_sources})
list(FILTER lab_commands INCLUDE REGEX "command\\.cpp$")
list(REMOVE_ITEM lab_sources ${lab_commands})

# What is measured, at full speed.
add_library(mr_lab STATIC ${lab_sources} ${lab_kernels})
target_include_directories(mr_lab PUBLIC ${PROJECT_SOURCE_DIR} PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(mr_lab PUBLIC millrace PRIVATE mr_options ${MR_FMT})
millrace_together(mr_lab 12)
if(MILLRACE_HAS_CUDA)
    target_compile_definitions(mr_lab PRIVATE MR_CUDA=1)
    millrace_kernels_together(mr_lab kernels_lab
        lab/attention/attention_measure.cu lab/attention/flash_measure.cu lab/attention/flash_unfused.cu
        lab/gemm/gemm_measure.cu lab/norms/norm_measure.cu lab/overlap/kernels.cu
        lab/streams/work.cu lab/context/device_upkeep.cu)
    target_link_libraries(mr_lab PRIVATE CUDA::cudart_static)
endif()

# The program: the command line's parser and printing, with other commands.
add_executable(millrace_lab ${PROJECT_SOURCE_DIR}/lab/main.cpp ${PROJECT_SOURCE_DIR}/lab/outcome.cpp
               ${lab_commands})
set_target_properties(millrace_lab PROPERTIES OUTPUT_NAME millrace-lab
                      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
target_compile_options(millrace_lab PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>)
target_precompile_headers(millrace_lab PRIVATE <nlohmann/json.hpp>)
target_link_libraries(millrace_lab PRIVATE mr_lab mr_cli ${MR_FMT} nlohmann_json::nlohmann_json)
millrace_together(millrace_lab 24)
if(MILLRACE_PACKAGE)
    target_link_options(millrace_lab PRIVATE -static-libstdc++ -static-libgcc)
endif()
millrace_pages(millrace_lab millrace-lab)
