# CUDA is found, never required: without nvcc the same commands build the CPU engine.
#   MILLRACE_CUDA          AUTO (use it if an nvcc is found that is new enough), ON (fail without), OFF
#   MILLRACE_CUDA_ARCH     e.g. 90a, 80, "75;86"; empty: this machine's GPU, or 90a where it has none;
#                          "80-virtual": PTX, which newer GPUs compile at the first run;
#                          "75:90": what a 7.5 would run, as machine code of a 9.0, so that the
#                          kernels for older GPUs can be tested on a newer one
#   MILLRACE_CUDA_OPTIMIZE AUTO, ON or OFF. OFF compiles kernels in a quarter of the time, to see
#                          that they compile: the program does not use a GPU then. AUTO is OFF
#                          where there is no GPU, neither MILLRACE_CUDA_ARCH nor MILLRACE_CUDA=ON
#                          asks for one, and nvcc is of CUDA 13.0 or later, which has such a mode.
set(MILLRACE_CUDA AUTO CACHE STRING "Build the CUDA engine: AUTO, ON or OFF")
set_property(CACHE MILLRACE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(MILLRACE_CUDA_ARCH "" CACHE STRING "GPU architectures to compile for; empty: this machine's")

set(MILLRACE_CUDA_OPTIMIZE AUTO CACHE STRING "Optimise kernels: AUTO, ON or OFF")
set_property(CACHE MILLRACE_CUDA_OPTIMIZE PROPERTY STRINGS AUTO ON OFF)

# cudaGetDriverEntryPointByVersion is of 12.5, __maxnreg__ of 12.4. docs/install.md names it, too.
set(MR_CUDA_NEEDED 12.5)

set(MILLRACE_HAS_CUDA FALSE)
set(MR_NO_CUDA "not used")
if(NOT MILLRACE_CUDA STREQUAL "OFF" AND NOT MILLRACE_SANITIZE AND NOT MILLRACE_TSAN)
    # Where a compiler is named, headers and libraries are those of its toolkit, and not of another
    # nvcc on PATH. As with CXX, the first configure decides.
    if(NOT CMAKE_CUDA_COMPILER AND NOT CUDAToolkit_NVCC_EXECUTABLE AND DEFINED ENV{CUDACXX})
        get_filename_component(CMAKE_CUDA_COMPILER "$ENV{CUDACXX}" PROGRAM)
    endif()
    if(CMAKE_CUDA_COMPILER)
        find_program(CUDAToolkit_NVCC_EXECUTABLE ${CMAKE_CUDA_COMPILER})
    endif()
    find_package(CUDAToolkit QUIET)
    set(remedy "put nvcc ${MR_CUDA_NEEDED} or later on PATH, or name it with CUDACXX=/path/to/nvcc")
    if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
        if(MILLRACE_CUDA STREQUAL "ON")
            message(FATAL_ERROR "MILLRACE_CUDA=ON, but nvcc was not found: ${remedy}")
        endif()
    elseif(CUDAToolkit_VERSION VERSION_LESS MR_CUDA_NEEDED)
        string(CONCAT MR_NO_CUDA "${CUDAToolkit_NVCC_EXECUTABLE} is ${CUDAToolkit_VERSION}, which is too "
                                 "old (${MR_CUDA_NEEDED} or later is needed)")
        # What was found is not kept: the next configure looks again.
        foreach(variable CUDAToolkit_NVCC_EXECUTABLE CUDAToolkit_BIN_DIR CUDA_CUDART)
            unset(${variable} CACHE)
        endforeach()
        if(MILLRACE_CUDA STREQUAL "ON")
            message(FATAL_ERROR "MILLRACE_CUDA=ON, but ${MR_NO_CUDA}; ${remedy}")
        endif()
    else()
        set(MILLRACE_HAS_CUDA TRUE)
    endif()
endif()

if(MILLRACE_HAS_CUDA)
    set(arch "${MILLRACE_CUDA_ARCH}")
    set(MR_CUDA_OPTIMIZED TRUE)
    if(NOT arch)
        execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                        OUTPUT_VARIABLE caps OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
        # Kept: a later configure may not find nvidia-smi, as with another user's PATH.
        if(caps MATCHES "^[0-9]+\\.[0-9]+")
            set(MR_GPU_CAPABILITY ${CMAKE_MATCH_0} CACHE INTERNAL "Of this machine's GPU")
        endif()
        string(REPLACE "." "" arch "${MR_GPU_CAPABILITY}")
        if(NOT arch)
            set(arch 90a)
            if(NOT MILLRACE_CUDA STREQUAL "ON" AND NOT EXISTS /dev/nvidiactl AND NOT EXISTS /dev/dxg
               AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 13.0)
                set(MR_CUDA_OPTIMIZED FALSE)
            endif()
        endif()
    endif()
    if(NOT MILLRACE_CUDA_OPTIMIZE STREQUAL "AUTO")
        set(MR_CUDA_OPTIMIZED ${MILLRACE_CUDA_OPTIMIZE})
    endif()
    set(code "")
    if(arch MATCHES "^([0-9]+):([0-9]+)$")
        set(code "-gencode=arch=compute_${CMAKE_MATCH_1},code=sm_${CMAKE_MATCH_2}")
        set(arch ${CMAKE_MATCH_2})
    endif()
    # Warp-group instructions exist only in the architecture-specific "90a", not in "90".
    list(TRANSFORM arch REPLACE "^90$" "90a")
    # "-real": machine code for exactly these; no second compile at the first run.
    list(TRANSFORM arch APPEND "-real" REGEX "^[0-9]+[a-z]?$")
    set(CMAKE_CUDA_ARCHITECTURES ${arch})
    if(NOT CMAKE_CUDA_COMPILER)
        set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
    endif()
    if(CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
        set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
    endif()
    enable_language(CUDA)
    if(code)
        set(CMAKE_CUDA_ARCHITECTURES OFF)
        add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:${code}>")
        set(arch "${MILLRACE_CUDA_ARCH}")
    endif()
    # CMake 3.25 does not know that nvcc 13 has C++20; this tells it.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
        set(CMAKE_CUDA_COMPILE_FEATURES ${CMAKE_CUDA_COMPILE_FEATURES} cuda_std_20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    message(STATUS "CUDA: ${CUDAToolkit_VERSION}, for ${arch}")
    if(NOT MR_CUDA_OPTIMIZED)
        # ptxas then reports losses of performance, which do not matter here.
        if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 13.0)
            add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--Ofast-compile=max>")
        endif()
        # The host's part of these files, which starts the kernels.
        string(REGEX REPLACE "-O[23]" "-O1" CMAKE_CUDA_FLAGS_RELEASE "${CMAKE_CUDA_FLAGS_RELEASE}")
        message(STATUS "CUDA: kernels are compiled but not optimised, and no GPU will be used "
                       "(-DMILLRACE_CUDA_ARCH=90 builds for a GPU elsewhere)")
    endif()
else()
    message(STATUS "CUDA: ${MR_NO_CUDA}; the CPU engine alone is built")
endif()

# millrace_cuda(): compiles what needs the CUDA toolkit into the library: *.cu, and *_cuda.cpp,
# which have no kernels and compile three times as fast without nvcc.
function(millrace_cuda)
    if(NOT MILLRACE_HAS_CUDA)
        return()
    endif()
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS
         ${PROJECT_SOURCE_DIR}/src/*.cu ${PROJECT_SOURCE_DIR}/src/*_cuda.cpp)
    list(FILTER sources EXCLUDE REGEX "_(test|bench)\\.cu$")
    # Objects that cmake/kernels.cmake also makes a library of are compiled once.
    set(attention ${sources})
    list(FILTER attention INCLUDE REGEX
         "/ops/attention/flash/([a-z]+/)?[a-z0-9_]+\\.(cu|cpp)$|/core/cuda/(device\\.cu|tensor_map_cuda\\.cpp|timeline\\.cu)$")
    list(REMOVE_ITEM sources ${attention})
    add_library(mr_attention OBJECT ${attention})
    target_include_directories(mr_attention PRIVATE ${PROJECT_SOURCE_DIR}/include
                               ${PROJECT_SOURCE_DIR}/src)
    target_compile_definitions(mr_attention PRIVATE MR_CUDA=1
                               $<$<NOT:$<BOOL:${MR_CUDA_OPTIMIZED}>>:MR_CUDA_NOT_OPTIMIZED=1>)
    target_link_libraries(mr_attention PRIVATE mr_options CUDA::cudart_static)
    target_sources(millrace PRIVATE ${sources} $<TARGET_OBJECTS:mr_attention>)
    target_compile_definitions(millrace PRIVATE MR_CUDA=1)
    millrace_short_kernels()
    # The runtime is linked statically and looks for the driver itself: the program also starts
    # without one. cuBLASLt is opened when it is first needed (ops/linear).
    target_link_libraries(millrace PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
endfunction()

# Which short files of kernels are compiled together, by what they are for.
function(millrace_short_kernels)
    set(ops src/ops)
    millrace_kernels_together(millrace kernels_inference
        ${ops}/add/add.cu ${ops}/add/parts.cu ${ops}/check/check.cu ${ops}/rows/rows.cu
        ${ops}/embedding/embedding.cu ${ops}/sample/rows.cu ${ops}/sample/adjust.cu
        ${ops}/denoise/block.cu ${ops}/attention/merge/merge.cu
        ${ops}/attention/paged/sinks.cu ${ops}/attention/paged/attention_cuda.cu ${ops}/rope/rope.cu)
    millrace_kernels_together(millrace kernels_training
        ${ops}/loss/loss.cu ${ops}/loss/loss_backward.cu ${ops}/embedding/embedding_backward.cu
        ${ops}/rope/rope_train.cu ${ops}/optimizer/adamw.cu ${ops}/activation/activation_backward.cu
        ${ops}/norm/norm_backward_many.cu ${ops}/attention/own_blocks/own_blocks.cu)
    millrace_kernels_together(millrace kernels_products
        ${ops}/linear/gemm.cu ${ops}/linear/gemm_dequantize.cu ${ops}/linear/gemm_search.cu
        ${ops}/linear/train_own.cu ${ops}/linear/train_cublaslt.cu
        ${ops}/linear/plain_linear.cu ${ops}/linear/linear_train.cu)
    millrace_kernels_together(millrace kernels_engine
        src/observe/device_bandwidth.cu src/observe/matrix_peak.cu src/model/cuda/device_kernels.cu
        src/model/cuda/device_decode.cu ${ops}/norm/norm_many_f32.cu)
    # Without optimisation the headers are most of the time of these, too.
    if(NOT MR_CUDA_OPTIMIZED)
        set(paged ${ops}/attention/paged)
        set(flash ${ops}/attention/flash)
        set(linear ${ops}/linear)
        millrace_kernels_together(millrace kernels_step
            ${ops}/step/step_bf16.cu ${ops}/step/step_f16.cu ${ops}/step/step_q4.cu ${ops}/step/step_q8.cu)
        millrace_kernels_together(millrace kernels_paged
            ${paged}/decode.cu ${paged}/stream.cu ${paged}/plain.cu ${paged}/several.cu ${paged}/many.cu)
        millrace_kernels_together(millrace kernels_norm
            ${ops}/norm/norm.cu ${ops}/norm/norm_many.cu ${ops}/norm/norm_backward.cu
            ${ops}/activation/activation.cu src/core/comm/tree_sum.cu)
        millrace_kernels_together(millrace kernels_wide
            ${linear}/small_linear.cu ${linear}/wide_quant.cu ${linear}/wide_half.cu)
        millrace_kernels_together(millrace kernels_mid
            ${linear}/mid_linear.cu ${linear}/mid_half.cu ${linear}/mid_quant.cu
            ${linear}/tiled_half.cu)
        millrace_kernels_together(mr_attention kernels_flash_forward
            ${flash}/forward/hopper.cu ${flash}/forward/mma.cu ${flash}/forward/plain.cu)
        millrace_kernels_together(mr_attention kernels_flash_backward
            ${flash}/backward/bf16.cu ${flash}/backward/f16.cu ${flash}/backward/mma.cu)
    endif()
    millrace_kernels_together(mr_attention kernels_attention
        ${ops}/attention/flash/backward/rows.cu
        src/core/cuda/device.cu src/core/cuda/timeline.cu)
endfunction()
