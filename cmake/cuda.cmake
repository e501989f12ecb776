# CUDA is found, never required. Nothing is compiled with it yet; the line says what there is.
find_package(CUDAToolkit QUIET)
if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE)
    message(STATUS "CUDA: found ${CUDAToolkit_VERSION}; this version computes on the CPU")
else()
    message(STATUS "CUDA: not found; this version computes on the CPU")
endif()
