# Benchmarks of single operations: src/ROOM/**/NAME_bench.cpp is target bench_NAME, built on demand.
file(GLOB_RECURSE bench_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*_bench.cpp)
foreach(source ${bench_sources})
    get_filename_component(name ${source} NAME_WE)
    string(REPLACE "_bench" "" name ${name})
    add_executable(bench_${name} EXCLUDE_FROM_ALL ${source})
    target_include_directories(bench_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(bench_${name} PRIVATE millrace mr_options)
endforeach()
