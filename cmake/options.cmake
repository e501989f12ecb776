# Flags every target of the project shares.
add_library(mr_options INTERFACE)
target_compile_options(mr_options INTERFACE -Wall -Wextra -fno-math-errno -fno-trapping-math)
# Contraction would let the compiler fuse a*b+c on one path and not on another: results of one
# instruction path must not depend on inlining. Kernels ask for fma where they want it.
target_compile_options(mr_options INTERFACE -ffp-contract=off)
if(MILLRACE_WERROR)
    target_compile_options(mr_options INTERFACE -Werror)
endif()
if(MILLRACE_SANITIZE)
    target_compile_options(mr_options INTERFACE -fsanitize=address,undefined
                           -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(mr_options INTERFACE -fsanitize=address,undefined)
endif()
