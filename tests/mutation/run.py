"""Changes the core and the shells in every small way there is, and looks which change no
test sees.

    python tests/mutation/run.py [MODULE ...] [--list] [--only TEXT] [--share N]

For each module (by default those of the dedup cache) every mutation of :mod:`mutate` is
tried in a process of its own (:mod:`judging`): the tests that :mod:`modules` names for it run
until one fails, and then, if none did and it is a module of the core, the simulator with some
seeds.  Exit status 0 only if each mutation that survives is listed in ``survivors.toml`` with
the reason why a reader agrees that it changes nothing that matters, and each of those does
survive.  With ``--share N`` only each N-th mutation is tried, the same ones each time; of the
modules in SHARES that is so without the option.

``shells`` stands for the modules of shells whose survivors were read (READ); the others are
tried by their names until somebody has read theirs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from tests.mutation.judging import SURVIVED, WHO, judge_all  # noqa: E402  # not on the path before
from tests.mutation.modules import ALL, READ, SHARES, path_of  # noqa: E402
from tests.mutation.mutate import mutations  # noqa: E402


def survivors(module: str) -> dict[str, str]:
    """The mutations that may survive, and why."""
    table = tomllib.loads((HERE / "survivors.toml").read_text(encoding="utf-8"))
    reasons: dict[str, str] = table.get(module, {})
    return reasons


def examine(module: str, options: argparse.Namespace) -> bool:
    """Try a module's mutations and say what survived; whether all is as agreed."""
    source = path_of(module).read_text(encoding="utf-8")
    chosen = [each for each in mutations(source) if options.only in each.name]
    share = options.share or SHARES.get(module, 1)
    chosen = chosen[::share]
    began_s = time.monotonic()
    judged = list(zip(chosen, judge_all(module, chosen, options.jobs), strict=True))
    agreed = survivors(module)
    alive = [mutation for mutation, code in judged if code == SURVIVED]
    unknown = [mutation for mutation in alive if mutation.name not in agreed]
    tried = {mutation.name for mutation in chosen}
    if not options.only and share == 1:
        tried |= agreed.keys()  # also those that are not there any more
    stale = sorted((agreed.keys() & tried) - {mutation.name for mutation in alive})
    caught = Counter(WHO.get(code, "tests") for _, code in judged if code != SURVIVED)
    figures = {
        "module": module, "share": share, "mutations": len(judged), "caught": dict(caught),
        "survived": len(alive), "agreed": len(alive) - len(unknown),
        "unknown": [mutation.name for mutation in unknown], "stale": stale,
        "seconds": round(time.monotonic() - began_s, 1),
    }  # fmt: skip
    if options.json:
        print(json.dumps(figures))
        return not unknown and not stale
    part = len(alive) / max(1, len(judged))
    print(
        f"{module}: {len(judged)} mutations{f' (1 of {share})' if share > 1 else ''}, caught by "
        + ", ".join(f"{who} {count}" for who, count in caught.most_common())
        + f"; {len(alive)} survived ({part:.1%}), {figures['agreed']} of them agreed; "
        f"{figures['seconds']} s"
    )
    for mutation in unknown:
        print(f"  survives, line {mutation.line}: {mutation.name}")
    for name in stale:
        print(f"  is caught, or is not there any more: {name}")
    return not unknown and not stale


def main() -> int:
    words = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=words)
    parser.add_argument("modules", nargs="*", default=["dedup", "request_table"], metavar="MODULE")
    parser.add_argument("--only", default="", help="mutations whose name contains this")
    parser.add_argument("--share", type=int, default=0, metavar="N", help="each N-th mutation")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at the same time")
    parser.add_argument("--list", action="store_true", help="name the mutations, try none")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each module")
    options = parser.parse_args()
    named = [each for name in options.modules for each in (READ if name == "shells" else [name])]
    unknown = [module for module in named if module not in ALL]
    if unknown:
        parser.error(f"no such module: {unknown[0]}; there are shells, {', '.join(ALL)}")
    if options.share < 0 or options.jobs < 1:
        parser.error("--share and --jobs are numbers >= 1")
    if options.list:
        for module in named:
            for mutation in mutations(path_of(module).read_text(encoding="utf-8")):
                print(f"{module}:{mutation.line}: {mutation.name}")
        return 0
    os.environ.setdefault("HYPOTHESIS_PROFILE", "mutation")
    # What takes long to import and is not the package, once for all children.
    for name in ("pytest", "hypothesis.stateful", "trio", "numpy", "cbor2"):
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as compiled:
        # Each child would compile all that it imports, where no compiled files are written.
        sys.dont_write_bytecode, sys.pycache_prefix = False, compiled
        good = [examine(module, options) for module in named]
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main())
