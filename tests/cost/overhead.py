"""Processor time that a rollout costs beside its model calls, paired with two others.

    python tests/cost/overhead.py --verifiers-python /path/to/python

256 rollouts at once of four model calls each, which an engine in a process of its own
answers after 50 ms.  One environment is run three ways, in turn:

``ours``       ``trio-envserve serve`` with one worker, and a client program.
``asyncio``    one asyncio program with httpx: no server, no worker, no retries.
``verifiers``  the server of verifiers 0.3.0 with one worker, and its client.

Printed is the processor time of all processes of a way (server, worker, client) for one
rollout, and the ratio of ours to each other way, by rounds: median, least and most.  The
engine's own time counts for nobody.  Nothing is asserted: no test is timed.

The pool of httpx looks through all its connections for each request, so the program on
asyncio is dear with 256 at once; ``OVERHEAD_ROLLOUTS=16`` shows it at its best.

The Python given needs ``pip install verifiers==0.3.0 uvloop``, which brings httpx.  This
file stands alone, so that Python runs its roles ``asyncio`` and ``verifiers``, too.
"""

# The others are not installed where this is type-checked.
# mypy: disable-error-code="import-not-found, misc, no-any-return"

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROLLOUTS = int(os.environ.get("OVERHEAD_ROLLOUTS", "256"))
"""Rollouts at once; the programs that are started have the number from here."""
TURNS = 4
ANSWER_S = 0.05
ANSWER = "The answer is 5, since two and three are five. " * 8
PROMPT = "What is 2 + 3? Think about it, and answer in a sentence. " * 5
REPLY = "Are you sure? Look at it once more."

HERE = Path(__file__).resolve()


# -- the environment, for ours --------------------------------------------------------


async def chat(rollout: Any) -> dict[str, Any]:
    """Four turns, and a reward for each right answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
    right = 0
    for _ in range(TURNS):
        answer = await rollout.ask(messages)
        right += "5" in answer.text
        messages += [answer.message, {"role": "user", "content": REPLY}]
    return {"reward": right / TURNS, "completion": messages[1:-1]}


# -- roles: each is a program that answers a line of standard input with one ----------


def engine() -> None:
    """OpenAI's chat completions over HTTP/1.1, as cheap as it can be."""
    choice = {"index": 0, "message": {"role": "assistant", "content": ANSWER}}
    body = json.dumps({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{**choice, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 80, "completion_tokens": 96, "total_tokens": 176},
    }).encode()  # fmt: skip
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    answer = head.encode() + b"\r\n\r\n" + body

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                asked = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(asked.split(b"content-length:")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                await asyncio.sleep(ANSWER_S)
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(connection, "127.0.0.1", 0, backlog=4096)
        say(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        await server.serve_forever()

    end_with_stdin()
    asyncio.run(serve())


def alone(url: str) -> None:
    """The role ``asyncio``: everything in one program."""
    import httpx  # noqa: ASYNC127  # the one that the figure is about

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)

    async def rounds() -> None:
        async with httpx.AsyncClient(limits=limits, timeout=None) as client:

            async def one(_: int) -> bool:
                messages = [{"role": "user", "content": PROMPT}]
                right = 0
                for _turn in range(TURNS):
                    body = {"model": "m", "messages": messages}
                    answer = await client.post(f"{url}/chat/completions", json=body)
                    answer.raise_for_status()
                    message = answer.json()["choices"][0]["message"]
                    right += "5" in message["content"]
                    messages += [message, {"role": "user", "content": REPLY}]
                return right == TURNS

            await answer_lines(one)

    asyncio.run(rounds())


def ours(url: str, address: str) -> None:
    """The client program of ours."""
    import trio

    from trio_envserve import open_client

    async def rounds() -> None:
        async with open_client(address) as client:
            say(ready=True)
            while await trio.to_thread.run_sync(sys.stdin.readline):
                right = 0
                inputs: list[Any] = [{"number": number} for number in range(ROLLOUTS)]
                async with client.run_many(inputs, model=url, model_name="m") as outcomes:
                    async for _, outcome in outcomes:
                        right += outcome.ok and outcome.value["reward"] == 1.0
                say(right=right)

    trio.run(rounds)


def load_environment() -> Any:
    """The environment, as the workers of verifiers load it."""
    import verifiers as vf
    from datasets import Dataset

    class Chat(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
            return [{"role": "user", "content": REPLY}]

    def right(completion: Any, **_: Any) -> float:
        said = [message for message in completion if message["role"] == "assistant"]
        return sum("5" in str(message["content"]) for message in said) / TURNS

    dataset = Dataset.from_list([{"prompt": [{"role": "user", "content": PROMPT}]}])
    return Chat(dataset=dataset, rubric=vf.Rubric(funcs=[right]), max_turns=TURNS)


def verifiers_server() -> None:
    """The server of verifiers, with one worker."""
    from verifiers.serve import ZMQEnvServer

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    say(address=address)
    end_with_stdin()
    sys.stdout = sys.stderr
    ZMQEnvServer.run_server(HERE.stem, log_level="ERROR", num_workers=1, address=address)


def verifiers_client(url: str, address: str) -> None:
    """The client of verifiers."""
    from verifiers.serve import ZMQEnvClient
    from verifiers.types import ClientConfig

    os.environ.setdefault("OVERHEAD_KEY", "none")
    config = ClientConfig(api_key_var="OVERHEAD_KEY", api_base_url=url)

    async def rounds() -> None:
        client = ZMQEnvClient(address=address)
        await client.wait_for_server_startup()

        async def one(number: int) -> bool:
            asked = {"prompt": [{"role": "user", "content": PROMPT}], "example_id": number}
            got = await client.run_rollout(asked, config, "m", {})
            return got["reward"] == 1.0

        await answer_lines(one)
        os._exit(0)

    asyncio.run(rounds())


async def answer_lines(one: Callable[[int], Awaitable[bool]]) -> None:
    """Run all rollouts at once for each line, and say how many were right."""
    say(ready=True)
    while await asyncio.to_thread(sys.stdin.readline):
        say(right=sum(await asyncio.gather(*map(one, range(ROLLOUTS)))))


def say(**record: Any) -> None:
    print(json.dumps(record), flush=True)


def end_with_stdin() -> None:
    """End this program, and what it started, when standard input ends."""

    def wait() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


# -- the measurement ----------------------------------------------------------------


class Program:
    """A role in a process of its own."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE.parent
        )
        self.pid = self._process.pid

    def ask(self) -> dict[str, Any]:
        """Answer of the program to a line."""
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self.read()

    def read(self) -> dict[str, Any]:
        """Next line of the program's output."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args!r} ended with {self._process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def tree(pid: int) -> Iterator[int]:
    """A process and those that it started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from tree(int(child))


def taken_s(programs: list[Program]) -> float:
    """Processor time of the programs and of what they started, so far."""
    ticks = 0
    for pid in [pid for program in programs for pid in tree(program.pid)]:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def ways(url: str, others: str | None) -> Iterator[tuple[str, list[list[str]]]]:
    """Each way with the commands of its programs; the last is the one that is asked."""
    me = str(HERE)
    serve = ["-m", "trio_envserve", "serve", "overhead:chat", "--json", "--workers", "1"]
    serve += ["--log-level", "warning"]
    serve += ["--capacity", str(ROLLOUTS), "--bind", "tcp://127.0.0.1:0"]
    yield "ours", [[sys.executable, *serve], [sys.executable, me, "ours", url]]
    if others is not None:
        yield "asyncio", [[others, me, "asyncio", url]]
        yield "verifiers", [[others, me, "verifiers-server"], [others, me, "verifiers", url]]


@contextmanager
def started(commands: list[list[str]]) -> Iterator[list[Program]]:
    """The programs of a way, warm: one round is behind them."""
    with ExitStack() as stack:
        programs: list[Program] = []
        said: dict[str, Any] = {}
        for command in commands:
            address = [said["address"]] if "address" in said else []
            programs.append(Program(*command, *address))
            stack.callback(programs[-1].end)
            said = programs[-1].read()
        assert programs[-1].ask() == {"right": ROLLOUTS}
        yield programs


def measure(rounds: int, others: str | None) -> dict[str, list[float]]:
    """Milliseconds of processor time for a rollout, by way and round."""
    with ExitStack() as stack:
        model = Program(sys.executable, str(HERE), "engine")
        stack.callback(model.end)
        running = {
            name: stack.enter_context(started(commands))
            for name, commands in ways(model.read()["url"], others)
        }
        taken: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(rounds):
            for name, programs in running.items():
                before_s = taken_s(programs)
                said = programs[-1].ask()
                assert said == {"right": ROLLOUTS}, (name, said)
                taken[name].append((taken_s(programs) - before_s) / ROLLOUTS * 1000)
        return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--verifiers-python", help="a Python with verifiers 0.3.0 and httpx")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    taken = measure(options.rounds, options.verifiers_python)
    if options.json:
        return say(rollouts=ROLLOUTS, turns=TURNS, milliseconds=taken)
    print(f"{ROLLOUTS} rollouts at once, {TURNS} model calls of {ANSWER_S * 1000:g} ms each")
    for name, each in taken.items():
        ratios = sorted(mine / other for mine, other in zip(taken["ours"], each, strict=True))
        print(
            f"  {name:10}{statistics.median(each):7.2f} ms a rollout; ours is "
            f"{statistics.median(ratios):.2f} of it ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


ROLES: dict[str, Callable[..., None]] = {
    "engine": engine,
    "asyncio": alone,
    "ours": ours,
    "verifiers-server": verifiers_server,
    "verifiers": verifiers_client,
}

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ROLES:
        ROLES[sys.argv[1]](*sys.argv[2:])
    else:
        main()
