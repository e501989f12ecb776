# Archives and .deb packages of what is installed (docs/packages.md): `make package`, or, of any build,
#   cpack -G "TGZ;DEB" -B FOLDER       in the build folder
# The same file defines the packages and, where CPack reads it, gives them their names: the version is
# that of the program as it was built last, not that of the last configure.
if(CPACK_PACKAGE_NAME)
    file(STRINGS ${CPACK_MILLRACE_BUILD}/version/version.txt version)
    set(CPACK_PACKAGE_VERSION ${version})
    set(CPACK_DEBIAN_PACKAGE_VERSION ${version})
    set(system linux-${CPACK_MILLRACE_PROCESSOR}${CPACK_MILLRACE_VARIANT})
    set(CPACK_PACKAGE_FILE_NAME millrace-${version}-${system})
    set(CPACK_ARCHIVE_PROGRAM_FILE_NAME millrace-${version}-${system})
    set(CPACK_ARCHIVE_LAB_FILE_NAME millrace-lab-${version}-${system})
    set(CPACK_ARCHIVE_DEV_FILE_NAME libmillrace-dev-${version}-${system})
    if(CPACK_GENERATOR STREQUAL "DEB")
        set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
    else()  # millrace-VERSION-SYSTEM/bin/millrace
        set(CPACK_PACKAGING_INSTALL_PREFIX /)
        set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
    endif()
    return()
endif()
if(NOT TARGET millrace_cli OR NOT PROJECT_IS_TOP_LEVEL)
    return()
endif()

install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md
              ${PROJECT_SOURCE_DIR}/CHANGELOG.md
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/millrace COMPONENT program)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE RENAME copyright
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libmillrace-dev COMPONENT dev)
# Licences of what is inside of the program. Debian's packages bring them.
set(notices "")
file(GLOB copyrights /usr/share/doc/nlohmann-json3-dev/copyright /usr/share/doc/libcli11-dev/copyright
     /usr/share/doc/libboost1*-dev/copyright /usr/share/doc/libfmt-dev/copyright
     /usr/share/doc/libedit-dev/copyright /usr/share/doc/libncurses-dev/copyright
     /usr/share/doc/libbsd-dev/copyright /usr/share/doc/libmd-dev/copyright
     /usr/share/doc/libstdc++-*-dev/copyright)
foreach(file ${copyrights})
    get_filename_component(name ${file} DIRECTORY)
    get_filename_component(name ${name} NAME)
    file(READ ${file} text)
    string(APPEND notices "======== ${name}\n${text}\n")
endforeach()
file(WRITE ${PROJECT_BINARY_DIR}/copyright
     "Millrace: the MIT licence, in LICENSE beside this file. Parts of these are in the program:\n\n"
     "${notices}")
install(FILES ${PROJECT_BINARY_DIR}/copyright
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/millrace COMPONENT program)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_BINARY_DIR}/copyright
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/millrace-lab COMPONENT lab)

set(CPACK_PACKAGE_NAME millrace)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_FILE})
set(CPACK_PACKAGE_VERSION ${MR_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_DESCRIPTION "Text, chat, an HTTP server and training for language models in GGUF and \
Hugging Face formats. Every run accounts for its time and bytes beside what the machine can do.")
set(CPACK_PACKAGE_CONTACT "The Millrace authors <millrace@localhost>")
set(CPACK_COMPONENTS_ALL program lab dev)
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)  # as many as there are cores
set(CPACK_MILLRACE_BUILD ${PROJECT_BINARY_DIR})
set(CPACK_MILLRACE_PROCESSOR ${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_MILLRACE_VARIANT "")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME millrace)
set(CPACK_DEBIAN_LAB_PACKAGE_NAME millrace-lab)
if(MILLRACE_HAS_CUDA)  # one of the two can be installed
    set(CPACK_MILLRACE_VARIANT -cuda${CUDAToolkit_VERSION_MAJOR})
    foreach(part PROGRAM LAB)
        set(name ${CPACK_DEBIAN_${part}_PACKAGE_NAME})
        set(CPACK_DEBIAN_${part}_PACKAGE_NAME ${name}-cuda${CUDAToolkit_VERSION_MAJOR})
        set(CPACK_DEBIAN_${part}_PACKAGE_PROVIDES ${name})
        set(CPACK_DEBIAN_${part}_PACKAGE_CONFLICTS ${name})
        set(CPACK_DEBIAN_${part}_PACKAGE_REPLACES ${name})
    endforeach()
endif()

set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libmillrace-dev)
set(CPACK_COMPONENT_LAB_DESCRIPTION "Experiments that each answer one question about the speed of \
language models, repeated on this machine.")
set(CPACK_DEBIAN_LAB_PACKAGE_SECTION science)
set(CPACK_DEBIAN_LAB_PACKAGE_RECOMMENDS millrace)  # its bundled models
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS ca-certificates)  # whom millrace-pull trusts
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
