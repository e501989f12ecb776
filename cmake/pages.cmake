# Writes PROGRAM's man page and shell completions to FOLDER, for installation: `cmake -P`.
foreach(page "man;millrace.1" "completion;bash;millrace.bash" "completion;zsh;_millrace"
             "completion;fish;millrace.fish")
    list(POP_BACK page file)
    execute_process(COMMAND ${PROGRAM} ${page} OUTPUT_FILE ${FOLDER}/${file}
                    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
