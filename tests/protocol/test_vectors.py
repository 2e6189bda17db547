"""vectors.json, replayed both ways, and by the machines that receive it."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable
from typing import Any

import cbor2
import pytest

from trio_envserve.core import messages, values
from trio_envserve.core.client import ClientCore, Connected, ServerMessage, ToServer
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.key_records import input_digest
from trio_envserve.core.limits import PROTOCOL_VERSION, ServerLimits, WireLimits
from trio_envserve.core.messages import FIELDS, KINDS, MESSAGES
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import Report, RouterEffect, Spawn, ToClient
from trio_envserve.core.router_inputs import ClientMessage, PoolOpened, Spawned, WorkerMessage
from trio_envserve.core.worker import EnvironmentReady, RouterMessage, WorkerCore
from trio_envserve.lab.conformance.cases import VECTORS
from trio_envserve.worker.config import WorkerConfig

CLASSES = {cls.__name__: cls for cls in MESSAGES}
MOST = 1 << 20
EXTRA = b"one frame too many"
BYTES = ("id", "digest", "bstr", "tag")


def message_of(vector: dict[str, Any]) -> Any:
    cls = CLASSES[vector["message"]]
    fields = vector["fields"]
    there = [(name, field) for name, field in FIELDS[cls] if name in fields or not field.optional]
    assert list(fields) == [name for name, _ in there]
    return cls(**{name: read(fields[name], field.cddl) for name, field in there})


def read(value: Any, cddl: str) -> Any:
    """A field of a message, in which bytes are written in hex."""
    if cddl in BYTES and isinstance(value, str):
        return bytes.fromhex(value)
    return list(map(bytes.fromhex, value)) if cddl == "[* note]" else value


def frames_of(vector: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(frame) for frame in vector["frames"]]


def ids(vectors: list[dict[str, Any]]) -> list[str]:
    return [f"{index}-{each.get('message', '')}" for index, each in enumerate(vectors)]


def test_the_vectors_are_of_this_version_and_cover_every_message():
    assert VECTORS["version"] == PROTOCOL_VERSION
    assert {each["message"] for each in VECTORS["messages"]} == set(CLASSES)


@pytest.mark.parametrize("vector", VECTORS["messages"], ids=ids(VECTORS["messages"]))
def test_a_message_is_encoded_to_its_bytes_and_back(vector: dict[str, Any]):
    message = message_of(vector)
    assert messages.encode(message).hex() == vector["header"]
    assert messages.decode(bytes.fromhex(vector["header"]), most_bytes=MOST) == message
    assert vector["header"] in vector["frames"]


def test_the_digest_of_an_ask_of_a_key_is_that_of_its_body():
    keyed = [each for each in VECTORS["messages"] if each["fields"].get("key")]
    asks = [(message_of(each), frames_of(each)) for each in keyed if "act" not in each["fields"]]
    assert asks
    for message, (_, body) in asks:
        assert message.digest == input_digest(body, message.rerun)


def before_header(frames: list[bytes]) -> int:
    """How many frames stand before the header: none, an incarnation, or a client, too."""
    return len(frames) - 2


@pytest.mark.parametrize("vector", VECTORS["batches"], ids=lambda each: each["meaning"])
def test_the_rows_of_a_batch_are_as_if_each_had_come_alone(vector: dict[str, Any]):
    frames = frames_of(vector)
    at = before_header(frames)
    rows = [frames_of({"frames": each}) for each in vector["rows"]]
    read = messages.read(frames[at:], most_bytes=MOST)
    assert [messages.read(each[at:], most_bytes=MOST)[0] for each in rows] == list(read)
    assert {type(message).__name__ for message, _ in read} == {vector["message"]}
    assert [(*frames[:at], *each) for each in messages.in_batches(read)] == [tuple(frames)]
    alone = [next(messages.in_batches([row])) for row in read]
    assert [[*frames[:at], *each] for each in alone] == rows
    assert messages.rows_claimed(frames[at]) == len(rows)


def test_every_kind_that_has_batches_has_a_vector():
    assert {CLASSES[each["message"]] for each in VECTORS["batches"]} == messages.BATCHED


@pytest.mark.parametrize("vector", VECTORS["no_batches"], ids=lambda each: each["why"])
def test_a_wrong_batch_is_malformed(vector: dict[str, Any]):
    with pytest.raises(ProtocolError):
        messages.read(frames_of(vector), most_bytes=MOST)
    router = new_router()
    assert errors_of(router.take(ClientMessage(b"route", frames_of(vector), 0.0))) == ["malformed"]


@pytest.mark.parametrize(
    "vector", VECTORS["header_bounds"], ids=lambda each: each["why"] or "taken"
)
def test_a_header_at_a_bound_is_taken_and_one_past_it_refused(vector: dict[str, Any]):
    header = bytes.fromhex(vector["begin"]) + bytes.fromhex(vector["item"]) * vector["times"]
    header += bytes.fromhex(vector["end"])
    if vector["why"]:
        with pytest.raises(ProtocolError):
            messages.decode(header, most_bytes=WireLimits().header_bytes)
    else:
        messages.decode(header, most_bytes=WireLimits().header_bytes)


def value_of(kind: str, said: Any, vector: dict[str, Any]) -> Any:
    """What a value of ``vectors.json`` is here."""
    if kind == "array":
        numpy = pytest.importorskip("numpy")
        return numpy.array(vector["items"], said).reshape(vector["shape"])
    makers: dict[str, Callable[[Any], Any]] = {
        "json": lambda same: same, "integer": int, "bytes": bytes.fromhex, "set": set,
        "map": dict,
        "date-time": datetime.datetime.fromisoformat,
        "local-date-time": datetime.datetime.fromisoformat,
        "date": datetime.date.fromisoformat, "uuid": uuid.UUID, "decimal": decimal.Decimal,
        "seconds": lambda number: datetime.timedelta(seconds=number),
    }  # fmt: skip
    return makers[kind](said)


@pytest.mark.parametrize("vector", VECTORS["values"], ids=lambda each: each["meaning"])
def test_a_value_is_encoded_to_its_bytes_and_back(vector: dict[str, Any]):
    kind, said = next(iter(vector["value"].items()))
    value = value_of(kind, said, vector["value"])
    data = bytes.fromhex(vector["bytes"])
    assert values.encode(value) == data
    decoded = values.decode(data)
    assert type(decoded) is type(value)
    assert repr(decoded) == repr(value)


@pytest.mark.parametrize("vector", VECTORS["bounds"], ids=lambda each: each["why"] or "taken")
def test_a_body_at_a_bound_is_taken_and_one_past_it_refused(vector: dict[str, Any]):
    body = bytes.fromhex(vector["begin"]) + bytes.fromhex(vector["item"]) * vector["times"]
    if vector["why"]:
        with pytest.raises(values.DecodingError):
            values.decode(body)
    else:
        assert values.encode(values.decode(body))


# -- each message, as the machine that receives it takes it ---------------------


def one_of(*kinds: int) -> list[dict[str, Any]]:
    wanted = range(*kinds)
    return [each for each in VECTORS["messages"] if KINDS[CLASSES[each["message"]]] in wanted]


def new_router() -> Router:
    counter = iter(range(1, 1000))
    return Router(
        epoch=b"E" * 16, slots=1, now_s=0.0, new_id=lambda: next(counter).to_bytes(16, "big")
    )


def errors_of(effects: list[RouterEffect]) -> list[str]:
    sent = [effect for effect in effects if isinstance(effect, ToClient)]
    answers = [messages.decode(bytes(effect.frames[0]), most_bytes=MOST) for effect in sent]
    return [each.code for each in answers if isinstance(each, messages.Error)]


@pytest.mark.parametrize("vector", one_of(0, 16), ids=lambda each: each["message"])
def test_the_router_takes_what_clients_say(vector: dict[str, Any]):
    router = new_router()
    assert errors_of(router.take(ClientMessage(b"route", frames_of(vector), 0.0))) == []
    more = [*frames_of(vector), EXTRA]
    assert errors_of(router.take(ClientMessage(b"route", more, 0.0))) == ["malformed"]
    assert router.malformed == 1


@pytest.mark.parametrize("vector", VECTORS["malformed"], ids=lambda each: each["why"])
def test_the_router_answers_malformed_headers(vector: dict[str, str]):
    router = new_router()
    effects = router.take(ClientMessage(b"route", [bytes.fromhex(vector["header"])], 0.0))
    code = "foreign-version" if "version" in vector["why"] else "malformed"
    assert errors_of(effects) == [code]


@pytest.mark.parametrize("vector", one_of(16, 32), ids=lambda each: each["message"])
def test_the_client_takes_what_the_router_says(vector: dict[str, Any]):
    client = ClientCore(name="vectors", new_id=lambda: b"n" * 16, now_s=0.0)
    effects = client.take(ServerMessage(frames_of(vector), 0.0))
    assert not [each for each in effects if ignored(each)]
    effects = client.take(ServerMessage([*frames_of(vector), EXTRA], 0.0))
    assert [each for each in effects if ignored(each)]


def ignored(effect: object) -> bool:
    return isinstance(effect, Report) and "ignored" in effect.text


@pytest.mark.parametrize("vector", one_of(64, 80), ids=lambda each: each["message"])
def test_the_router_takes_what_workers_say(vector: dict[str, Any]):
    router = new_router()
    spawn = next(each for each in router.take(PoolOpened((), 0.0)) if isinstance(each, Spawn))
    router.take(Spawned(spawn.worker, 1))
    frames = [spawn.worker, spawn.incarnation, *frames_of(vector)[1:]]
    has_body = vector["message"] in ("WorkerOutcome", "WorkerDelta", "WorkerSave")
    assert len(frames) == (5 if has_body else 3)
    router.take(WorkerMessage(frames, 0.0))
    assert router.malformed == 0
    router.take(WorkerMessage([*frames, EXTRA], 0.0))
    assert router.malformed == 1


@pytest.mark.parametrize(
    "vector", one_of(80, 84) + one_of(85, 90), ids=lambda each: each["message"]
)
def test_a_worker_takes_what_the_router_says(vector: dict[str, Any]):
    frames = frames_of(vector)
    worker = WorkerCore(frames[0])
    worker.take(EnvironmentReady(1, "env", False))
    worker.take(RouterMessage(frames))
    assert (worker.malformed, worker.fenced) == (0, 0)
    worker.take(RouterMessage([*frames, EXTRA]))
    assert worker.malformed == 1
    worker.take(RouterMessage([b"another incarn.!", *frames[1:]]))
    assert worker.fenced == 1


def test_a_worker_is_started_with_what_the_vector_has():
    (vector,) = one_of(84, 85)
    incarnation, header, body = frames_of(vector)
    told = cbor2.loads(body)
    config = WorkerConfig(
        worker="w0-1", incarnation=incarnation, environment=told["environment"],
        args=told["args"], server="tcp://127.0.0.1:5555", limits=ServerLimits(), wire=WireLimits(),
        path=[], logging={},
    )  # fmt: skip
    frames = config.to_frames()
    assert frames[:2] == (incarnation, header)
    said = cbor2.loads(frames[2])
    assert told["limits"].items() <= said["limits"].items()
    assert told["wire"].items() <= said["wire"].items()
    assert WorkerConfig.from_frames(list(frames)) == config


def test_a_client_that_connects_says_hello_first():
    client = ClientCore(name="vectors", new_id=lambda: b"n" * 16, now_s=0.0)
    effects = client.take(Connected(0.0))
    (hello,) = [effect for effect in effects if isinstance(effect, ToServer)]
    assert isinstance(messages.decode(bytes(hello.frames[0]), most_bytes=MOST), messages.Hello)
