"""After a restart the new server has no worker yet, and its first record says
nothing of the environment.  The client took that for "no consent" and failed the
calls which the environment had allowed to run again: two of three such calls.

Found by the simulator, by counting what became of them.
"""

import itertools

from trio_envserve.core import messages
from trio_envserve.core.client import ClientCore
from trio_envserve.core.client_effects import Fail, ToServer
from trio_envserve.core.limits import PROTOCOL_VERSION
from trio_envserve.core.messages import Hello, Message, Request, Unknown, Welcome


def sent(client: ClientCore) -> list[Message]:
    effects = client.take()
    assert not [effect for effect in effects if isinstance(effect, Fail)]
    frames = [effect.frames for effect in effects if isinstance(effect, ToServer)]
    return [messages.decode(each[0], most_bytes=1 << 20) for each in frames]


def welcome(client: ClientCore, server: int, status: str, environment: str, rerun: bool) -> None:
    client.tick(float(server))
    hello = next(each for each in sent(client) if isinstance(each, Hello))
    record = {"status": status, "environment": environment, "rerun": rerun}
    answer = Welcome(
        PROTOCOL_VERSION,
        hello.nonce,
        bytes([server]) * 16,
        bytes([server]) * 16,
        8,
        1 << 20,
        record,
    )
    client.message((messages.encode(answer),), float(server))


def test_a_call_is_issued_again_as_the_environment_had_declared():
    ids = itertools.count()
    client = ClientCore(name="c", new_id=lambda: next(ids).to_bytes(16), now_s=0.0)
    client.connected(0.0)
    client.take()
    welcome(client, 1, "ready", "env", True)
    client.submit(b"body", 1.0, max_executions=2)
    (request,) = (each for each in sent(client) if isinstance(each, Request))

    client.message((messages.encode(Unknown(request.session, False, b"\2" * 16, False)),), 1.5)
    welcome(client, 2, "starting", "", False)
    client.message((messages.encode(Unknown(request.session, True, b"\2" * 16, False)),), 2.5)

    (again,) = (each for each in sent(client) if isinstance(each, Request))
    assert again.session == b"\2" * 16
    assert again.allowance == 1
