// Shell completion scripts: commands, options, and the values of options that have a list.
// Everything else is completed as a file name.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "cli/outline.h"

namespace mr::cli {
namespace {

// All commands except hidden ones, each after its parent.
std::vector<const CommandOutline*> all_commands(const CommandOutline& program) {
    std::vector<const CommandOutline*> all = {&program};
    for (std::size_t i = 0; i < all.size(); ++i) {
        const CommandOutline& command = *all[i];
        for (const CommandOutline& inner : command.commands) {
            if (!inner.hidden) all.push_back(&inner);
        }
    }
    return all;
}

// "/bench/decode": the words after the program's name.
std::string key(const CommandOutline& command) {
    std::string path = command.path;
    path.erase(0, std::min(path.find(' '), path.size()));
    std::replace(path.begin(), path.end(), ' ', '/');
    return path;
}

// Words without dashes after a command: its subcommands, or values such as 'bash'.
struct Word {
    std::string name, about;
};
std::vector<Word> plain_words(const CommandOutline& command) {
    std::vector<Word> words;
    for (const CommandOutline& inner : command.commands) {
        if (!inner.hidden) words.push_back({inner.name, inner.about});
    }
    for (const OptionOutline& option : command.options) {
        if (option.positional.empty()) continue;
        for (const std::string& word : option.words()) words.push_back({word, option.about});
    }
    return words;
}

// Quotes any text as a shell word. fish has an escape inside quotes.
std::string quoted(std::string_view text, bool fish) {
    std::string out = "'";
    for (const char c : text) {
        if (c == '\'') {
            out += fish ? "\\'" : "'\\''";
        } else if (c == '\\' && fish) {
            out += "\\\\";
        } else {
            out += c;
        }
    }
    return out + "'";
}

// The part that bash and zsh share: finds the command that the words before name. `words`, `count`:
// the shell's names for them.
std::string find_path(const std::vector<const CommandOutline*>& all, const char* word,
                      const char* first, const char* end) {
    std::vector<std::string> keys;
    for (const CommandOutline* command : all) {
        if (!key(*command).empty()) keys.push_back(key(*command));
    }
    return fmt::format(
        "    for ((i = {}; i < {}; i++)); do\n"
        "        case \"$path/{}\" in\n"
        "            {}) path=\"$path/{}\" ;;\n"
        "        esac\n"
        "    done\n",
        first, end, word, fmt::join(keys, "|"), word);
}

// case lines: values of an option, by "path:option".
std::string value_cases(const std::vector<const CommandOutline*>& all, const char* words_line,
                        const char* other_line) {
    std::string text;
    for (const CommandOutline* command : all) {
        std::vector<std::string> others;
        for (const OptionOutline& option : command->options) {
            if (option.value.empty()) continue;
            std::vector<std::string> keys;
            for (const std::string& name : option.names()) {
                keys.push_back(key(*command) + ":" + name);
            }
            if (keys.empty()) continue;
            const std::vector<std::string> words = option.words();
            if (words.empty()) {
                others.insert(others.end(), keys.begin(), keys.end());
                continue;
            }
            text += fmt::format("        {}) ", fmt::join(keys, "|"));
            text += fmt::format(fmt::runtime(words_line), fmt::join(words, " "));
            text += " ;;\n";
        }
        if (!others.empty()) {
            text += fmt::format("        {}) {} ;;\n", fmt::join(others, "|"), other_line);
        }
    }
    return text;
}

std::vector<std::string> option_names(const CommandOutline& command) {
    std::vector<std::string> names;
    for (const OptionOutline& option : command.options) {
        for (const std::string& name : option.names()) names.push_back(name);
    }
    return names;
}

std::string bash_script(const CommandOutline& program) {
    const std::vector<const CommandOutline*> all = all_commands(program);
    std::string words;
    for (const CommandOutline* command : all) {
        std::vector<std::string> inner;
        for (const Word& word : plain_words(*command)) inner.push_back(word.name);
        words += fmt::format("        {}) options=\"{}\" commands=\"{}\" ;;\n",
                             key(*command).empty() ? "''" : key(*command),
                             fmt::join(option_names(*command), " "), fmt::join(inner, " "));
    }
    // An empty result is completed by file names (-o default).
    return fmt::format(
        "# Completion of {name} for bash, made by '{name} completion bash'.\n"
        "_{name}() {{\n"
        "    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}\n"
        "    local path= options= commands= i\n"
        "    COMPREPLY=()\n"
        "    if [[ $cur == '=' ]]; then\n"
        "        cur=\n"
        "    elif [[ $prev == '=' ]]; then\n"
        "        prev=${{COMP_WORDS[COMP_CWORD-2]}}\n"
        "    fi\n"
        "{}"
        "    case \"$path:$prev\" in\n"
        "{}"
        "    esac\n"
        "    case $path in\n"
        "{}"
        "    esac\n"
        "    if [[ $cur == -* ]]; then\n"
        "        COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
        "    else\n"
        "        COMPREPLY=($(compgen -W \"$commands\" -- \"$cur\"))\n"
        "    fi\n"
        "}}\n"
        "complete -o default -F _{name} {name}\n",
        find_path(all, "${COMP_WORDS[i]}", "1", "COMP_CWORD"),
        value_cases(all, "COMPREPLY=($(compgen -W \"{}\" -- \"$cur\")); return", "return"), words,
        fmt::arg("name", program.name));
}

std::string zsh_script(const CommandOutline& program) {
    const std::vector<const CommandOutline*> all = all_commands(program);
    std::string lists;
    for (const CommandOutline* command : all) {
        // "name:description", as _describe expects; colons in names are escaped.
        std::vector<std::string> options, commands;
        for (const OptionOutline& option : command->options) {
            for (const std::string& name : option.names()) {
                options.push_back(quoted(name + ":" + option.about, false));
            }
        }
        for (const Word& word : plain_words(*command)) {
            commands.push_back(quoted(word.name + ":" + word.about, false));
        }
        lists +=
            fmt::format("        {})\n            options=({})\n            commands=({}) ;;\n",
                        key(*command).empty() ? "''" : key(*command), fmt::join(options, " "),
                        fmt::join(commands, " "));
    }
    return fmt::format(
        "#compdef {name}\n"
        "# Completion of {name} for zsh, made by '{name} completion zsh'.\n"
        "_{name}() {{\n"
        "    local path_= prev=${{words[CURRENT-1]}} i\n"
        "    local -a options commands\n"
        "{}"
        "    case \"$path_:$prev\" in\n"
        "{}"
        "    esac\n"
        "    case $path_ in\n"
        "{}"
        "    esac\n"
        "    if [[ $PREFIX == -* ]]; then\n"
        "        _describe option options\n"
        "    elif (( $#commands )); then\n"
        "        _describe command commands\n"
        "    else\n"
        "        _files\n"
        "    fi\n"
        "}}\n"
        "if [[ $funcstack[1] == _{name} ]]; then\n"
        "    _{name} \"$@\"\n"
        "else\n"
        "    compdef _{name} {name}\n"
        "fi\n",
        // $path is zsh's own, tied to $PATH.
        [&] {
            std::string text = find_path(all, "${words[i]}", "2", "CURRENT");
            for (std::size_t at = 0; (at = text.find("path", at)) != std::string::npos; at += 5) {
                text.insert(at + 4, "_");
            }
            return text;
        }(),
        value_cases(all, "compadd -- {}; return", "_files; return"), lists,
        fmt::arg("name", program.name));
}

std::string fish_script(const CommandOutline& program) {
    const std::vector<const CommandOutline*> all = all_commands(program);
    std::vector<std::string> keys;
    for (const CommandOutline* command : all) {
        if (!key(*command).empty()) keys.push_back(key(*command));
    }
    std::string text = fmt::format(
        "# Completion of {name} for fish, made by '{name} completion fish'.\n"
        "function __{name}_at\n"
        "    set -l path ''\n"
        "    for word in (commandline -opc)[2..-1]\n"
        "        if contains -- \"$path/$word\" {}\n"
        "            set path \"$path/$word\"\n"
        "        end\n"
        "    end\n"
        "    test \"$path\" = \"$argv[1]\"\n"
        "end\n",
        fmt::join(keys, " "), fmt::arg("name", program.name));
    for (const CommandOutline* command : all) {
        const std::string at = fmt::format("complete -c {name} -n \"__{name}_at '{}'\"",
                                           key(*command), fmt::arg("name", program.name));
        for (const Word& word : plain_words(*command)) {
            text += fmt::format("{} -f -a {} -d {}\n", at, word.name, quoted(word.about, true));
        }
        for (const OptionOutline& option : command->options) {
            if (option.names().empty()) continue;
            text += at;
            for (const std::string& name : option.shorts) text += " -s " + name.substr(1);
            for (const std::string& name : option.longs) text += " -l " + name.substr(2);
            const std::vector<std::string> words = option.words();
            if (!words.empty()) {
                text += fmt::format(" -x -a '{}'", fmt::join(words, " "));
            } else if (!option.value.empty()) {
                text += option.takes_path() ? " -r -F" : " -x";
            }
            text += fmt::format(" -d {}\n", quoted(option.about, true));
        }
    }
    return text;
}

}  // namespace

std::string completion_script(const CommandOutline& program, std::string_view shell) {
    if (shell == "bash") return bash_script(program);
    return shell == "zsh" ? zsh_script(program) : fish_script(program);
}

}  // namespace mr::cli
