#include "cli/commands.h"

int main(int argc, char** argv) { return mr::cli::program(argc, argv); }
