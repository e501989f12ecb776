# The laboratory (lab/): experiments that answer a question once, a folder each.
file(GLOB lab_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/lab/*/*.cpp)
list(FILTER lab_sources EXCLUDE REGEX "_test\\.cpp$")
set(lab_kernels "")
if(MILLRACE_HAS_CUDA)
    file(GLOB lab_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/lab/*/*.cu)
    list(FILTER lab_kernels EXCLUDE REGEX "_test\\.cu$")
else()
    list(FILTER lab_sources EXCLUDE REGEX "_cuda\\.cpp$")
endif()
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
