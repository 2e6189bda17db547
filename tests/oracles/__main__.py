"""Records of what the laboratory finds today, and comparison of later code with them.

``python -m tests.oracles COMMAND --help`` explains each:

``digests``
    hashes of seeded runs, and sizes of every explored configuration.
``ledger``
    everything broken on purpose, and which check finds it by which guarantee.
``traces``
    what the judges of the simulator see, as plain data outside of the repository.
``judge``
    judges over those traces: whether they find what today's do.
``mutated``
    the judges under mutation: which small changes of them no trace shows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import digests, judge, ledger, mutated, traces


def main(arguments: Sequence[str]) -> int:
    """The exit code of the command that the arguments name."""
    parser = argparse.ArgumentParser(
        "python -m tests.oracles", description=(__doc__ or "").partition("\n")[0]
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (digests, ledger, traces, judge, mutated):
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
