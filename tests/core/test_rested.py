"""A key at rest as bytes: all of it comes back, or it stays awake."""

from __future__ import annotations

import sys

import pytest

from trio_envserve.core.journal import Opened
from trio_envserve.core.key_records import KeyName
from trio_envserve.core.requests import OUTCOME_BYTES
from trio_envserve.core.rested import left_at_rest, pack, unpack
from trio_envserve.core.restored import Left

from .rested_keys import fields


@pytest.mark.parametrize("rerun", [None, False, True])
def test_all_of_it_comes_back(rerun):
    one = fields(2**40)._replace(rerun=rerun)
    packed = pack(one)
    assert packed is not None
    assert unpack(packed) == one
    assert sys.getsizeof(packed) <= 128


@pytest.mark.parametrize("change", [{"body_bytes": 2**32}, {"executions": 2**16}, {"digest": b"d"}])
def test_what_does_not_fit_stays_awake(change):
    assert pack(fields(0)._replace(**change)) is None


def test_what_a_journal_has_left_of_one():
    opened = Opened(7, b"team", b"k", bytes(32), True, 4, 1, bytes(16), b"body")
    left = left_at_rest(Left(opened, set(), 2, (b"head", b"payload")))
    assert left is not None
    found = unpack(left)
    assert (found.number, found.executions) == (7, 2)  # one that may have been is not counted
    assert (found.size_bytes, found.body_bytes) == (OUTCOME_BYTES + 7, 4)
    assert (found.rerun, found.name) == (True, KeyName(b"team", b"k"))
