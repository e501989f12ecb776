# What PROGRAM says of itself, as files in FOLDER that are installed: `cmake -P`, when it is linked.
foreach(page "man;millrace.1" "completion;bash;millrace.bash" "completion;zsh;_millrace"
             "completion;fish;millrace.fish")
    list(POP_BACK page file)
    execute_process(COMMAND ${PROGRAM} ${page} OUTPUT_FILE ${FOLDER}/${file}
                    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
