# Writes the commit of SOURCE to FILE if it has changed; run by `cmake -P` at every build.
set(commit "")
if(EXISTS ${SOURCE}/.git)
    execute_process(COMMAND git --no-optional-locks -C ${SOURCE} describe --always --dirty
                            --exclude=* --abbrev=9
                    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                    RESULT_VARIABLE status)
    if(NOT status EQUAL 0)  # no git, or a clone that another user owns
        set(commit "")
    endif()
endif()
file(CONFIGURE OUTPUT ${FILE} CONTENT "#define MR_COMMIT \"${commit}\"\n")  # only if changed
