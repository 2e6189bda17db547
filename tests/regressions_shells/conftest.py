"""The stage of the tests with real processes, which must leave nothing behind."""

from tests.real.conftest import judge, nothing_left, pyzmq_warm

__all__ = ["judge", "nothing_left", "pyzmq_warm"]
