# millrace_kernels: attention alone (include/millrace/attention.h), for programs that bring their own
# tensors and streams. Built on demand; it needs the CUDA runtime and fmt, nothing else of the house.
#   cmake --build build --target millrace_kernels example_attention
if(NOT MILLRACE_HAS_CUDA)
    return()
endif()
file(GLOB kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/ops/attention/flash_*.cu)
list(FILTER kernel_sources EXCLUDE REGEX "_(test|bench|measure|unfused)\\.cu$")
add_library(millrace_kernels STATIC EXCLUDE_FROM_ALL ${kernel_sources}
    ${PROJECT_SOURCE_DIR}/src/ops/attention/flash_api.cpp
    ${PROJECT_SOURCE_DIR}/src/ops/attention/flash_problem.cpp
    ${PROJECT_SOURCE_DIR}/src/core/cuda/device.cu
    ${PROJECT_SOURCE_DIR}/src/core/cuda/tensor_map.cu
    ${PROJECT_SOURCE_DIR}/src/core/cuda/timeline.cu
    ${PROJECT_SOURCE_DIR}/src/core/arena.cpp
    ${PROJECT_SOURCE_DIR}/src/core/error.cpp
    ${PROJECT_SOURCE_DIR}/src/core/ledger.cpp
    ${PROJECT_SOURCE_DIR}/src/core/memory.cpp
    ${PROJECT_SOURCE_DIR}/src/core/tensor.cpp)
target_include_directories(millrace_kernels PUBLIC ${PROJECT_SOURCE_DIR}/include
                           PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_compile_definitions(millrace_kernels PRIVATE MR_CUDA=1)
target_link_libraries(millrace_kernels PRIVATE mr_options fmt::fmt
                      PUBLIC CUDA::cudart_static ${CMAKE_DL_LIBS})

add_executable(example_attention EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/examples/attention.cpp)
target_link_libraries(example_attention PRIVATE millrace_kernels CUDA::cudart_static)
