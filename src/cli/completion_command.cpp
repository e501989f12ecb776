// PROGRAM completion: a script for a shell. PROGRAM man: the man page, which the build generates
// and installs.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "millrace/millrace.h"

namespace mr::cli {

void add_completion(const Command& app, Action& action) {
    auto shell = std::make_shared<std::string>();
    const Command command = app.add_subcommand(
        "completion", "Print a script that completes commands and options in a shell");
    command.add_option("shell", *shell, "bash, zsh or fish")
        .one_of({"bash", "zsh", "fish"})
        .required();
    command.footer(
        fmt::format("Examples:\n"
                    "  source <({0} completion bash)\n"
                    "  {0} completion zsh > \"${{fpath[1]}}/_{0}\"\n"
                    "  {0} completion fish > ~/.config/fish/completions/{0}.fish\n"
                    "'make install' puts all three where the shells look for them.",
                    program_name()));
    command.callback([app, shell, &action] {
        action = [app, shell] {
            out(completion_script(app.outline(), *shell));
            return 0;
        };
    });
    const Command man = app.add_subcommand("man", "The page for man(1), in its own language");
    man.hide();
    man.callback([app, &action] {
        action = [app] {
            out(man_page(app.outline(), fmt::format("{} {}", program_name(), millrace::version())));
            return 0;
        };
    });
}

}  // namespace mr::cli
