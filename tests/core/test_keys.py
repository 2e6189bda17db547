"""What is the same request under a key, and what may start it when it is issued again."""

from __future__ import annotations

import pytest

from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.key_records import Enter, KeyName, Reissue, input_digest
from trio_envserve.core.requests import Ask

from .key_desk import LIMITS, NAME, OUTCOME, A, B, C, Desk, asking, said


def test_the_same_key_in_another_namespace_is_another_key():
    desk = Desk()
    desk.ask(A)
    assert desk.ask(B, KeyName(b"other", NAME.key), body=b"other")[0] == ("enter", 1)


def test_the_same_input_under_a_key_starts_nothing_a_second_time():
    desk = Desk()
    assert desk.ask(A) == [("enter", 0)]
    assert desk.ask(B) == []
    assert desk.run() == [("answer", A, OUTCOME), ("answer", B, OUTCOME)]
    assert desk.ask(C) == [("answer", C, OUTCOME)]


@pytest.mark.parametrize("other", [{"body": b"other"}, {"rerun": True}, {"rerun": False}])
def test_another_input_or_consent_is_a_conflict_and_disturbs_nothing(other):
    desk = Desk()
    desk.ask(A)
    assert desk.ask(B, **other) == [("CONFLICT", B)]
    assert desk.leave(B) == []
    assert desk.run() == [("answer", A, OUTCOME)]
    assert desk.ask(B, **other) == [("CONFLICT", B)]


def test_a_digest_that_is_said_of_another_input_is_a_conflict():
    desk = Desk()
    desk.ask(A)
    claimed = Ask(input_digest(b"input", None), b"longer input", None, 4)
    assert said(desk.keys.ask(asking(B, claimed), 0.0)) == [("CONFLICT", B)]


def test_the_digest_is_of_the_input_and_the_consent():
    digests = {
        input_digest(body, rerun) for body in (b"", b"1", b"11") for rerun in (None, True, False)
    }
    assert len(digests) == 9
    assert {*map(len, digests)} == {32}
    assert input_digest(memoryview(b"11"), True) == input_digest(b"11", True)


def test_the_allowance_is_the_keys_and_the_first_one_holds():
    desk = Desk()
    effects = desk.keys.ask(asking(A, Ask(b"digest", b"", True, 3)), 0.0)
    (entered,) = [effect for effect in effects if isinstance(effect, Enter)]
    assert entered.allowance == 3
    assert said(desk.keys.ask(asking(B, Ask(b"digest", b"", True, 9)), 0.0)) == []


@pytest.mark.parametrize("part", ["namespace", "key"])
def test_a_name_has_a_bounded_length(part):
    desk = Desk()
    most = getattr(LIMITS, f"{part}_bytes")
    for length in (0, most + 1):
        name = NAME._replace(**{part: b"k" * length})
        with pytest.raises(ProtocolError, match=f"a {part} has 1 to {most} bytes"):
            desk.ask(A, name)
    assert desk.ask(A, NAME._replace(**{part: b"k" * most}))[0] == ("enter", 0)


@pytest.mark.parametrize(
    ("gone", "rerun", "earlier"),
    [(False, True, 1), (True, None, 1), (True, False, 1), (True, True, 4)],
)
def test_who_is_issued_again_without_proof_or_consent_or_allowance_only_attaches(
    gone, rerun, earlier
):
    desk = Desk()
    again = Reissue(gone, earlier)
    assert desk.ask(A, rerun=rerun, reissue=again) == [("UNKNOWN_KEY", A)]
    desk.ask(B, rerun=rerun)
    assert desk.ask(A, rerun=rerun, reissue=again) == []
    assert desk.leave(B) == []  # it has sent the input: it counts
    desk.run()
    assert desk.ask(C, rerun=rerun, reissue=again) == [("answer", C, OUTCOME)]


@pytest.mark.parametrize("rerun", [True, None])
def test_who_is_issued_again_with_all_of_them_starts_what_is_left(rerun):
    desk = Desk()
    desk.keys.declared_rerun = True
    ask = Ask(input_digest(b"", rerun), b"", rerun, 4)
    again = asking(A, ask, reissue=Reissue(gone=True, earlier=3))
    effects = desk.keys.ask(again, 0.0)
    assert said(effects) == [("enter", 0)]
    (entered,) = [effect for effect in effects if isinstance(effect, Enter)]
    assert (entered.allowance, ask.allowance) == (1, 4)
    assert desk.keys.cancel(NAME, 0, 0.0)[1].started, "an earlier epoch may have started it"
