"""Environment code that does what no environment should."""

import trio


async def leak_cancelled(rollout):
    """Raises a Cancelled that is of no scope that is still there."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as exc:
            leaked = exc
    raise leaked
