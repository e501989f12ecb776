"""`python -m millrace`: the command line."""
import sys

from ._core import program


def main() -> int:
    sys.stdout.flush()
    return program(["millrace", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
