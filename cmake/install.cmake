# Components: `program` is bin/millrace and what it reads; `dev` is the library, its public headers, and
# what find_package(millrace) reads; `mpi` is the module with MPI, which no package has: it fits the MPI
# of one system alone.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

target_compile_features(millrace PUBLIC cxx_std_20)  # required by the public header

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/millrace)
install(TARGETS millrace millrace_version EXPORT millraceTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
if(TARGET millrace_kernels)  # include/millrace/attention.h is its header
    install(TARGETS millrace_kernels EXPORT millraceTargets
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
endif()
install(EXPORT millraceTargets NAMESPACE millrace:: DESTINATION ${package_dir} COMPONENT dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/millrace DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT dev FILES_MATCHING PATTERN "*.h")
if(TARGET millrace_cli)
    install(TARGETS millrace_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
    if(TARGET millrace_pull)  # src/cli/pull.cpp looks for it beside the program
        install(TARGETS millrace_pull RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
    endif()
    if(TARGET millrace_mpi)  # src/core/comm/launch.cpp looks for it there
        install(TARGETS millrace_mpi LIBRARY DESTINATION lib/millrace COMPONENT mpi)
    endif()
    install(TARGETS millrace_lab RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT lab)
    set(pages ${PROJECT_BINARY_DIR}/pages)
    set(share ${CMAKE_INSTALL_DATADIR})
    foreach(part "millrace;program" "millrace-lab;lab")
        list(GET part 0 name)
        list(GET part 1 component)
        install(FILES ${pages}/${name}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
                COMPONENT ${component})
        install(FILES ${pages}/${name}.bash DESTINATION ${share}/bash-completion/completions
                RENAME ${name} COMPONENT ${component})
        install(FILES ${pages}/_${name} DESTINATION ${share}/zsh/site-functions
                COMPONENT ${component})
        install(FILES ${pages}/${name}.fish DESTINATION ${share}/fish/vendor_completions.d
                COMPONENT ${component})
    endforeach()
endif()
# src/cli looks for the bundled model in ../share/millrace/models, relative to the program.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/ DESTINATION share/millrace/models OPTIONAL
        COMPONENT program FILES_MATCHING PATTERN "*.gguf")

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/millraceConfig.cmake.in
    ${PROJECT_BINARY_DIR}/millraceConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/millraceConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/millraceConfig.cmake
    ${PROJECT_BINARY_DIR}/millraceConfigVersion.cmake DESTINATION ${package_dir} COMPONENT dev)

# What the rules above install, without the tests: `make install`.
add_custom_target(millrace_installed)
foreach(target millrace millrace_version millrace_kernels millrace_cli millrace_lab millrace_pull
        millrace_mpi)
    if(TARGET ${target})
        add_dependencies(millrace_installed ${target})
    endif()
endforeach()
