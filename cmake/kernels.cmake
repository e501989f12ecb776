# millrace_kernels: attention alone (include/millrace/attention.h), for programs that bring their
# own tensors and streams. It needs the CUDA runtime and fmt, and nothing else of the project.
#   cmake --build build --target millrace_kernels example_attention
if(NOT MILLRACE_HAS_CUDA)
    return()
endif()
# Its kernels are objects of the library (millrace_cuda()), so they are compiled only once.
add_library(millrace_kernels STATIC $<TARGET_OBJECTS:mr_attention>
    ${PROJECT_SOURCE_DIR}/src/ops/attention/flash/problem.cpp
    ${PROJECT_SOURCE_DIR}/src/core/arena.cpp
    ${PROJECT_SOURCE_DIR}/src/core/cgroup.cpp
    ${PROJECT_SOURCE_DIR}/src/core/cuda/limits.cpp
    ${PROJECT_SOURCE_DIR}/src/core/error.cpp
    ${PROJECT_SOURCE_DIR}/src/core/ledger.cpp
    ${PROJECT_SOURCE_DIR}/src/core/memory.cpp
    ${PROJECT_SOURCE_DIR}/src/core/printable.cpp
    ${PROJECT_SOURCE_DIR}/src/core/tensor.cpp
    ${PROJECT_SOURCE_DIR}/src/core/utf8.cpp)
add_library(millrace::millrace_kernels ALIAS millrace_kernels)
target_include_directories(millrace_kernels
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_compile_features(millrace_kernels PUBLIC cxx_std_20)
target_compile_definitions(millrace_kernels PRIVATE MR_CUDA=1)
target_link_libraries(millrace_kernels PRIVATE $<BUILD_INTERFACE:mr_options> ${MR_FMT}
                      PUBLIC CUDA::cudart_static ${CMAKE_DL_LIBS})

add_executable(example_attention ${PROJECT_SOURCE_DIR}/examples/attention.cpp)
target_link_libraries(example_attention PRIVATE millrace_kernels CUDA::cudart_static)
