"""The three machines in memory do what a request needs."""

from tests.cost.joined import BATCH, Counter, Joined


def test_all_that_is_asked_is_answered_and_received():
    joined = Joined(Counter())
    joined.keep_in_flight(64)
    for _ in range(10):
        joined.turn()
    stats = joined.router.stats()
    assert stats["cache"]["finished"] >= 8 * BATCH  # the last are told with the next requests
    assert stats["running"] == 64
    assert (stats["malformed"], stats["cache"]["refused_for_now"]) == (0, 0)


def test_each_of_many_keyed_requests_has_a_key_of_its_own_and_is_answered():
    joined = Joined(Counter(), keyed=True)
    joined.keep_in_flight(64)
    for _ in range(80):  # more than may be answered while no time passes
        joined.turn()
    keys = joined.router.keys
    assert len(keys.generations) == 64 + 80 * BATCH
    assert len(keys.retained) >= 78 * BATCH
    assert joined.router.stats()["running"] == 64
