"""Mutants of any system: hunted until they are caught, and gone afterwards."""

from __future__ import annotations

import pytest

from examples.kv_store import STORE, Server
from trio_envserve.retrylab.failure import SystemTarget
from trio_envserve.retrylab.mutants import Family, Patches, find_in
from trio_envserve.retrylab.target import hunt

FAMILY = Family(("at most once", "one true answer"))


@FAMILY.mutant("at most once")
def forgets_what_it_did(patches: Patches) -> None:
    """A server that starts again has forgotten what it did."""

    @patches.around(Server, "keep")
    def keep(original, self):
        self.disk["store"] = self.values, {}


FAMILY.table(("does-nothing", "", (), "Nothing is broken."))


def hunted(name: str, most_runs: int):
    return hunt(SystemTarget(STORE, mutant=find_in(FAMILY.mutants, name)), most_runs=most_runs)


def test_mutant_of_a_system_is_caught_by_the_guarantee_that_it_names():
    catch = hunted("forgets-what-it-did", 200)
    assert (catch.caught, catch.guarantee, catch.clean) == (True, "at most once", True)
    assert catch.digest != catch.clean_digest


def test_mutant_that_nobody_sees_is_not_caught():
    catch = hunted("does-nothing", 5)
    assert (catch.caught, catch.runs, catch.seed) == (False, 5, None)


def test_name_that_is_wrong_gets_the_near_ones():
    with pytest.raises(KeyError, match="did you mean does-nothing"):
        find_in(FAMILY.mutants, "does-nothin")


def test_source_of_a_function_is_other_text_for_as_long_as_a_mutant_is_applied():
    kept, patches = Server.keep, Patches()
    before = kept.__code__
    with pytest.raises(LookupError, match=r"Server.keep has no 'nothing like it' in it"):
        patches.source(kept, "nothing like it", "")
    patches.source(kept, "self", "this")
    assert kept.__code__.co_varnames[0] == "this"
    assert kept.__code__.co_firstlineno == before.co_firstlineno
    patches.undo()
    assert kept.__code__ is before
