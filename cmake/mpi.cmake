# MPI is found, never required. It goes into a separate module (src/core/comm/mpi_module.h), which
# the program loads if it was launched as one of several ranks.
#   MILLRACE_MPI           AUTO (use it if found), ON (fail without), OFF
set(MILLRACE_MPI AUTO CACHE STRING "Build the module with MPI: AUTO, ON or OFF")
set_property(CACHE MILLRACE_MPI PROPERTY STRINGS AUTO ON OFF)

set(MILLRACE_HAS_MPI FALSE)
if(NOT MILLRACE_MPI STREQUAL "OFF")
    set(MPI_CXX_SKIP_MPICXX TRUE)
    find_package(MPI QUIET COMPONENTS CXX)
    if(MPI_CXX_FOUND)
        set(MILLRACE_HAS_MPI TRUE)
        message(STATUS "MPI: ${MPI_CXX_VERSION} (${MPI_CXX_LIBRARY_VERSION_STRING})")
    elseif(MILLRACE_MPI STREQUAL "ON")
        message(FATAL_ERROR "MILLRACE_MPI=ON, but MPI was not found: install it (Debian: "
                            "libopenmpi-dev openmpi-bin) or set MPI_HOME")
    endif()
endif()

function(millrace_mpi)
    set(launch ${PROJECT_SOURCE_DIR}/src/core/comm/launch.cpp)
    target_link_libraries(millrace PRIVATE ${CMAKE_DL_LIBS})
    if(NOT MILLRACE_HAS_MPI)
        return()
    endif()
    set_property(SOURCE ${launch} APPEND PROPERTY COMPILE_DEFINITIONS MR_HAS_MPI=1)
    add_library(millrace_mpi MODULE ${PROJECT_SOURCE_DIR}/src/core/comm/messages_mpi.cpp)
    set_target_properties(millrace_mpi PROPERTIES PREFIX "" SUFFIX ".so")
    target_include_directories(millrace_mpi PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(millrace_mpi PRIVATE MPI::MPI_CXX mr_options)
endfunction()
