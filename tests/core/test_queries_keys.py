"""Pages of keys: what is on them, and that none costs more than its share."""

from __future__ import annotations

from typing import Any

from trio_envserve.core import messages, queries
from trio_envserve.core.key_records import KeyName
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.queries import KeyPages

from .bench import Bench, made
from .helpers import NAME

MANY = KeyLimits(generations=100_000, namespace_share=1.0, namespaces=10)
QUEUE: dict[str, Any] = {"queue": 100_000, "window": 100_000, "session_share": 1.0}


class Pages:
    """Pages of the keys of a bench, each question in a turn of its own."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.pages = KeyPages(bench.works)
        self.turn_s = 0.0

    def page(
        self, namespace: bytes = b"default", first: int = 0, *, new_turn: bool = True
    ) -> dict[str, Any]:
        self.turn_s += new_turn
        return self.pages.page(namespace, first, self.bench.now_s, self.turn_s)

    def all(self, namespace: bytes = b"default") -> list[bytes]:
        first: int | None = 0
        found: list[bytes] = []
        while first is not None:
            page = self.page(namespace, first)
            assert page["next"] is None or page["next"] > first
            found += [each["key"] for each in page["keys"]]
            first = page["next"]
        return found


def many(count: int, namespaces: tuple[bytes, ...] = (b"default",), size: int = 5) -> Bench:
    bench = Bench(MANY, **QUEUE)
    for number in range(count):
        name = KeyName(namespaces[number % len(namespaces)], b"%0*d" % (size, number))
        bench.ask(1, number, name=name)
    return bench


def test_a_key_is_described_as_it_is():
    bench = Bench()
    pages = Pages(bench)
    bench.ask(1, name=NAME)
    bench.ask(2, name=NAME)
    bench.attach(3)
    bench.wait(7.5)
    assert pages.page() == {
        "keys": [
            {
                "namespace": b"default", "key": b"key", "generation": 0, "state": "waiting",
                "waiters": 2, "watchers": 1, "lost": 0, "executions": 0, "age_s": 7.5,
                "left_s": None, "size_bytes": 10,
            }
        ],
        "next": None, "generations": 1, "size_bytes": 10,
    }  # fmt: skip


def test_what_nobody_waits_for_says_how_long_it_is_kept():
    bench = Bench()
    pages = Pages(bench)
    bench.ask(1, name=NAME)
    execution = bench.dispatch(bench.work())
    bench.end(1, lost=True)
    bench.wait(4.0)
    (orphan,) = pages.page()["keys"]
    assert (orphan["state"], orphan["lost"], orphan["left_s"]) == ("running", 1, 6.0)
    bench.report(execution)
    bench.wait(7.0)
    bench.works.clock.awake_s = 12.0
    (retained,) = pages.page()["keys"]
    assert (retained["state"], retained["left_s"]) == ("completed", 99.0)
    assert retained["size_bytes"] == NAME.size_bytes + made().size_bytes


def test_a_page_ends_after_so_many_keys_and_so_many_bytes():
    """So it fits into the smallest frame that a peer takes."""
    fullest = Pages(many(500, (b"n" * 64,), size=17)).page(b"n" * 64)
    assert len(fullest["keys"]) == queries.PAGE_ROWS
    assert len(messages.encode_record(fullest)) < 32 * 1024
    page = Pages(many(500, size=250)).page()
    names = sum(len(each["namespace"] + each["key"]) + len(each["state"]) for each in page["keys"])
    assert names <= queries.PAGE_BYTES < names + 300
    assert len(messages.encode_record(page)) < 32 * 1024


def test_a_name_larger_than_a_page_is_alone_on_one():
    bench = Bench(KeyLimits(key_bytes=20_000))
    for number in range(2):
        bench.ask(1, number, name=KeyName(b"a", b"%d" % number * 10_000))
    assert [len(name) for name in Pages(bench).all(b"a")] == [10_000, 10_000]


def test_the_questions_of_one_turn_look_at_so_many_together():
    pages = Pages(many(2 * queries.LOOKED_AT))
    asked = 0
    while pages.page(b"x", new_turn=False)["next"] == queries.LOOKED_AT:
        asked += 1
    assert asked == queries.TURN_PAGES
    refused = pages.page(new_turn=False)
    assert (refused["keys"], refused["next"]) == ([], 0)
    assert pages.page()["keys"]


def test_what_was_opened_and_dropped_since_the_last_page_is_known():
    bench = many(300)
    pages = Pages(bench)
    pages.all()
    for number in range(1, 300):
        bench.finish(1, number)
    assert pages.all() == [b"00000"]
    bench.ask(4, name=NAME)
    assert pages.all() == [b"00000", b"key"]
    bench.finish(4)
    bench.ask(2, name=NAME)
    assert pages.all() == [b"00000", b"key"]


def test_keys_that_are_gone_since_the_turn_began_ended_the_list_of_all():
    count = queries.LOOKED_AT + 3
    bench = many(count)
    pages = Pages(bench)
    pages.page()
    for number in range(count - 1):
        bench.finish(1, number)
    page = pages.page(new_turn=False)
    assert [each["key"] for each in page["keys"]] == [b"%05d" % (count - 1)]
    for _ in range(queries.TURN_PAGES):
        pages.page(new_turn=False)
    assert pages.page(new_turn=False)["next"] == count - 1
