"""The locks of an address: who may serve, and which epochs are proven dead."""

from __future__ import annotations

from pathlib import Path

import pytest

from trio_envserve import ServerStartError
from trio_envserve.server.locks import AddressLocks

ADDRESS = "tcp://127.0.0.1:5555"


def test_g1_a_second_server_at_an_address_is_refused_with_who_is_there(tmp_path: Path) -> None:
    first, second = AddressLocks(ADDRESS, tmp_path), AddressLocks(ADDRESS, tmp_path)
    first.take_server()
    with pytest.raises(ServerStartError, match=r"another server \(pid \d+\)"):
        second.take_server()
    first.close()
    second.take_server()
    second.close()


def test_g1_epochs_are_proven_dead_only_when_their_lock_is_free(tmp_path: Path) -> None:
    first, second = AddressLocks(ADDRESS, tmp_path), AddressLocks(ADDRESS, tmp_path)
    assert first.try_epochs(b"1" * 16) == set()
    assert second.try_epochs(b"2" * 16) is None
    first.close()
    assert second.try_epochs(b"2" * 16) == {b"1" * 16}
    second.close()


def test_the_files_of_a_passing_address_are_removed(tmp_path: Path) -> None:
    locks = AddressLocks(ADDRESS, tmp_path, passing=True)
    locks.take_server()
    assert locks.try_epochs(b"1" * 16) == set()
    locks.close()
    assert list(tmp_path.iterdir()) == []


def test_g1_a_lock_that_was_removed_while_waiting_for_it_is_not_taken_for_the_new_one(
    tmp_path: Path,
) -> None:
    passing = AddressLocks(ADDRESS, tmp_path, passing=True)
    waiting = AddressLocks(ADDRESS, tmp_path)
    passing.take_server()
    passing.close()
    third = AddressLocks(ADDRESS, tmp_path)
    third.take_server()
    with pytest.raises(ServerStartError):
        waiting.take_server()
    third.close()
    waiting.take_server()
    waiting.close()
