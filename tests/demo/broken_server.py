"""The command, with the dedup cache's answer to a duplicate removed.

A request that is there already is taken for one that was never seen: it is
entered and run again.  A program, run by test_demo.py.
"""

from trio_envserve.cli import main
from trio_envserve.core import request_table
from trio_envserve.core.request_table import TABLE, RequestInput
from trio_envserve.core.requests import RequestState


def never_seen(cache, session, sequence, entry, ask):
    """Forget the entry, and whatever runs or is kept for it, and enter it anew."""
    if entry.execution is not None:
        entry.execution.entry = None  # it goes on; nobody waits for it any more
    if entry.kept is not None:
        cache.kept_count -= 1
        cache.kept_bytes -= entry.kept.size_bytes
        session.kept_count -= 1
        session.kept_bytes -= entry.kept.size_bytes
    request_table.drop_body(cache, session, entry)
    del session.entries[sequence]
    return request_table._enter(cache, session, sequence, None, ask)


TABLE[RequestInput.REQUEST][RequestState.RUNNING] = never_seen
TABLE[RequestInput.REQUEST][RequestState.COMPLETED] = never_seen

if __name__ == "__main__":
    raise SystemExit(main())
