"""libzmq looks for news of its connections on every hundredth frame that is read, also
between two frames of a message; if there it learned that the connection is lost, an
assertion ended the process: the trainer's, with all that it had in memory.
"""

import subprocess
import sys

import pytest

PROGRAM = """
import trio, zmq
from trio_envserve.core.limits import WireLimits
from trio_envserve.net import ConnectionEvent, open_zmq_network

async def main():
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.set(zmq.LINGER, 10_000)
    router.bind("tcp://127.0.0.1:*")
    address = router.get_string(zmq.LAST_ENDPOINT)
    lost = trio.Event()

    def said(event):
        if event is ConnectionEvent.DISCONNECTED:
            lost.set()

    async with (
        open_zmq_network() as network,
        network.open_dealer(address, limits=WireLimits(), on_event=said) as dealer,
    ):
        dealer.send_nowait([b"hello"])
        route, _ = await trio.to_thread.run_sync(router.recv_multipart)
        for _ in range(98):
            router.send_multipart([route, b"x"])
        router.send_multipart([route, b"ninety-ninth", b"hundredth"])
        router.close()
        context.term()  # when all of it is sent
        await lost.wait()  # before any of it is read
        print(len(await dealer.receive()))
        while dealer.receive_nowait():
            pass

trio.run(main)
"""


@pytest.mark.real
def test_a_process_outlives_a_connection_lost_while_it_reads():
    run = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "35\n"), run.stderr
