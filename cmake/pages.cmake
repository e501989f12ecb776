# Writes the man page and the shell completions of PROGRAM, whose name is NAME, to FOLDER: `cmake -P`.
foreach(page "man;${NAME}.1" "completion;bash;${NAME}.bash" "completion;zsh;_${NAME}"
             "completion;fish;${NAME}.fish")
    list(POP_BACK page file)
    execute_process(COMMAND ${PROGRAM} ${page} OUTPUT_FILE ${FOLDER}/${file}
                    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
