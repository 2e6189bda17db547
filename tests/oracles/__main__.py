"""Records of what the laboratory finds today, and comparison of later code with them.

``python -m tests.oracles COMMAND --help`` explains each:

``digests``
    hashes of seeded runs, those of mutants included, and sizes of every explored configuration.
``ledger``
    everything broken on purpose, and which check finds it by which guarantee.
``mutated``
    the judges under mutation: which small changes of them no run shows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import digests, ledger, mutated


def main(arguments: Sequence[str]) -> int:
    """The exit code of the command that the arguments name."""
    parser = argparse.ArgumentParser(
        "python -m tests.oracles", description=(__doc__ or "").partition("\n")[0]
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (digests, ledger, mutated):
        name = command.__name__.rpartition(".")[2]
        prose = (command.__doc__ or "").partition("\n")[0]
        its = commands.add_parser(name, help=prose, description=prose)
        command.add_options(its)
        its.set_defaults(do=command.main)
    given = parser.parse_args(arguments)
    code: int = given.do(given)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
