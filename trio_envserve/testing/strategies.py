"""Hypothesis strategies: values of bodies, messages, frames, and what hostile peers send.

::

    @given(values())
    def test_my_inputs_survive_the_wire(value):
        assert same(decode(encode(value)), normal(value))

Theory of operation
-------------------
Each function returns a strategy, as Hypothesis's own do.  Those of messages are
made from the schema that the codec itself reads
(:data:`trio_envserve.core.messages.FIELDS`), so a new message or field is drawn
from the day it exists.  What is *hostile* is derived from what is right, by
damage: random bytes alone are refused too early to find much.

:func:`normal` and :func:`same` say what a value comes back as, and whether two
are the same.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Any

import cbor2
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ..core import messages as wire
from ..core.limits import PROTOCOL_VERSION
from ..core.messages import ABOUT, ABOUT_CDDL, FIELDS, KINDS, MAX_UINT, MESSAGES
from ..core.ranges import Ranges
from ..core.terms import DIGEST_BYTES, ID_BYTES, Status
from ..core.values import encode
from ..envs.request import RolloutRequest

# -- values of bodies -------------------------------------------------------------

TAGS: Sequence[int] = (
    *range(42), 52, 54, *range(64, 88), 100, 256, 258, 260, 261, 1002, 1004, 1040, 43000, 55799,
    *range(1701737985, 1701737996),
)  # fmt: skip
"""Tags of CBOR that mean something to some decoder."""


def texts() -> SearchStrategy[str]:
    """Short texts that have an encoding (no lone surrogates)."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def numbers() -> SearchStrategy[int | float]:
    """Integers, also large ones, and all floats."""
    large = 1 << 200
    return st.one_of(st.integers(), st.integers(-large, large), st.floats())


def plain_scalars() -> SearchStrategy[Any]:
    """The scalars of JSON, and integers and floats that JSON lacks."""
    return st.one_of(st.none(), st.booleans(), numbers(), texts())


def scalars() -> SearchStrategy[Any]:
    """All values without parts: plain scalars, bytes, times, UUIDs, decimals, complex."""
    zones = st.builds(
        lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes)),
        st.integers(-1439, 1439),
    )
    return st.one_of(
        plain_scalars(),
        st.binary(max_size=50),
        st.datetimes(),
        st.datetimes(timezones=zones),
        st.dates(),
        st.times(),
        st.timedeltas(),
        st.uuids(),
        st.decimals(allow_nan=False, allow_infinity=False, places=3),
        st.complex_numbers(allow_nan=False),
    )


def keys() -> SearchStrategy[Any]:
    """Keys of mappings and members of sets.

    No NaN is among them: it differs from itself, so a dictionary can hold two whose
    encodings are the same, and such a dictionary has no encoding.
    """
    return st.recursive(
        scalars().filter(lambda value: value == value),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(tuple), st.frozensets(inner, max_size=3)
        ),
        max_leaves=4,
    )


def plain_values() -> SearchStrategy[Any]:
    """Lists and mappings with text keys of :func:`plain_scalars`, nested."""
    return st.recursive(
        plain_scalars(),
        lambda inner: st.one_of(
            st.lists(inner, max_size=5), st.dictionaries(texts(), inner, max_size=5)
        ),
        max_leaves=20,
    )


def values() -> SearchStrategy[Any]:
    """Everything of the standard library that a body can hold, nested; some of it large."""
    return st.recursive(
        st.one_of(scalars(), st.integers(40_000, 40_010).map(bytes)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=5),
            st.lists(inner, max_size=5).map(tuple),
            st.dictionaries(keys(), inner, max_size=5),
            st.sets(keys(), max_size=5),
        ),
        max_leaves=15,
    )


def bodies() -> SearchStrategy[bytes]:
    """Encoded :func:`values`."""
    return values().map(encode)


def request_bodies(inputs: SearchStrategy[Any] | None = None) -> SearchStrategy[bytes]:
    """Bodies of requests for a rollout or a group; ``inputs``: of each rollout."""
    one = plain_values() if inputs is None else inputs
    common = {
        "endpoint": st.sampled_from(["oracle", "random"]),
        "model_name": texts(),
        "sampling_args": st.dictionaries(texts(), plain_scalars(), max_size=3),
        "max_retries": st.integers(0, 3),
        "state_columns": st.lists(texts(), max_size=3),
        "roles": st.dictionaries(texts().filter(bool), st.sampled_from(["oracle", "random"])),
        "working_s": st.none() | st.floats(0.001, 1e9),
    }
    return st.one_of(
        st.builds(RolloutRequest, kind=st.just("rollout"), input=one, **common),
        st.builds(
            RolloutRequest,
            kind=st.just("group"),
            input=st.lists(one, min_size=1, max_size=4),
            **common,
        ),
    ).map(lambda request: encode(request.to_body()))


def normal(value: object, *, key: bool = False) -> object:
    """The value that comes back: tuples as lists, where lists can be."""
    if isinstance(value, list | tuple):
        members = [normal(member, key=key) for member in value]
        return tuple(members) if key else members
    if isinstance(value, dict):
        return {normal(name, key=True): normal(member) for name, member in value.items()}
    if isinstance(value, set | frozenset):
        members = [normal(member, key=True) for member in value]
        return frozenset(members) if key else set(members)
    return value


def same(left: object, right: object) -> bool:
    """Equality that takes all NaNs for one and tells types and signs apart."""
    if isinstance(left, set | frozenset) and isinstance(right, set | frozenset):
        return len(left) == len(right) and all(
            any(same(member, other) for other in right) for member in left
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and isinstance(right, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, complex) and isinstance(right, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return len(left) == len(right) and all(map(same, left.items(), right.items()))
    return left == right


# -- messages ---------------------------------------------------------------------

TO_ROUTER = tuple(cls for cls in MESSAGES if KINDS[cls] < 16)
"""The messages of clients."""
TO_CLIENT = tuple(cls for cls in MESSAGES if 16 <= KINDS[cls] < 64)
"""The messages of the router to clients."""
FROM_WORKER = tuple(cls for cls in MESSAGES if 64 <= KINDS[cls] < 80)
"""The messages of workers."""
TO_WORKER = tuple(cls for cls in MESSAGES if KINDS[cls] >= 80)
"""The messages of the router to workers."""

WITH_BODY = (
    wire.Request, wire.Outcome, wire.QueryAnswer,
)  # fmt: skip
"""Messages of the clients' link that have a body."""

_VERSIONED = (wire.Hello, wire.WorkerHello)


def spans() -> SearchStrategy[list[int]]:
    """Ranges of sequences, flat as they travel."""
    members = st.frozensets(st.integers(0, 60), max_size=20)
    return members.map(lambda chosen: Ranges(chosen).flat())


_SPANS = st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1)


def _traceparent(trace: int, span: int, flags: int) -> str:
    return f"00-{trace:032x}-{span:016x}-{flags:02x}"


def fields(cddl: str) -> SearchStrategy[Any]:
    """Valid values of a field, by its CDDL in the protocol document.

    Raises KeyError for unknown CDDL.
    """
    kinds: dict[str, SearchStrategy[Any]] = {
        "uint": st.one_of(st.integers(0, 20), st.integers(0, MAX_UINT - 1)),
        "positive": st.integers(1, 20) | st.integers(1, MAX_UINT - 1),
        "id": st.binary(min_size=ID_BYTES, max_size=ID_BYTES),
        "tstr": texts(),
        "bool": st.booleans(),
        "bool / null": st.none() | st.booleans(),
        "seconds / null": st.none() | st.integers(0, 10**9) | st.floats(0, 1e11),
        "seconds": st.integers(0, 10**9) | st.floats(0, 1e11),
        "spans": spans(),
        "digest": st.one_of(
            [st.binary(min_size=size, max_size=size) for size in (ID_BYTES, DIGEST_BYTES)]
        ),
        "bstr": st.binary(max_size=20),
        ABOUT_CDDL: st.sampled_from(ABOUT),
        "tag": st.integers(0, 20) | st.binary(min_size=1, max_size=20),
        "1..4": st.integers(1, 4),
        "traceparent": st.builds(_traceparent, *_SPANS, st.integers(0, 255)),
        "[* note]": st.lists(st.binary(max_size=20), max_size=5),
        "{* tstr => any}": st.dictionaries(texts(), st.none() | st.integers(), max_size=3),
    }
    return kinds[cddl]


def messages(*classes: Any) -> SearchStrategy[Any]:
    """Valid messages of these classes; of all classes if none is named."""
    return st.sampled_from(classes or MESSAGES).flatmap(_messages_of)


def _messages_of(cls: Any) -> SearchStrategy[Any]:
    drawn = [
        st.none() | fields(field.cddl) if field.optional else fields(field.cddl)
        for _, field in FIELDS[cls]
    ]
    if cls in _VERSIONED:
        drawn[0] = st.just(PROTOCOL_VERSION)
    return st.tuples(*drawn).map(lambda each: cls(*each))


def headers(*classes: Any) -> SearchStrategy[bytes]:
    """Encoded :func:`messages`."""
    return messages(*classes).map(wire.encode)


def frames(*classes: Any) -> SearchStrategy[list[bytes]]:
    """Valid messages of the clients' link, as frames: a header, and the body if there is
    one.  Of all classes that clients send if none is named."""
    return messages(*(classes or TO_ROUTER)).flatmap(_framed)


def _framed(message: Any) -> SearchStrategy[list[bytes]]:
    header = wire.encode(message)
    if not isinstance(message, WITH_BODY):
        return st.just([header])
    body = bodies()
    if isinstance(message, wire.Request):  # only who asks sends an input
        body = st.just(b"") if message.act else request_bodies()
    elif isinstance(message, wire.Outcome) and message.status != Status.RESULT.value:
        body = plain_values().map(encode)
    return body.map(lambda each: [header, each])


# -- hostile -----------------------------------------------------------------------


def hostile_items() -> SearchStrategy[bytes]:
    """CBOR that no honest encoder makes: strange tags, wrong contents of known ones."""
    strange = st.recursive(
        st.one_of(plain_values(), st.binary(max_size=20), st.just(cbor2.undefined)),
        lambda inner: st.one_of(
            st.builds(cbor2.CBORTag, st.sampled_from(TAGS), inner),
            st.lists(inner, max_size=3),
            st.dictionaries(st.integers(-9, 9), inner, max_size=3),
            st.tuples(st.lists(st.integers(-1, 4), max_size=3), inner),
        ),
        max_leaves=8,
    )
    return strange.map(cbor2.dumps)


@st.composite
def damaged(draw: st.DrawFn, right: SearchStrategy[bytes]) -> bytes:
    """Bytes of ``right`` with some changed, cut off, doubled or put in.  (By chance
    they may be valid again.)"""
    data = bytearray(draw(right))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, min(len(data), 300)))
        how = draw(st.sampled_from(["change", "cut", "double", "put in"]))
        if how == "change":
            data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif how == "cut":
            del data[at:]
        elif how == "double":
            data += data[at : at + 100]
        else:
            data[at:at] = draw(st.binary(max_size=8))
    return bytes(data)


@st.composite
def _wrong_fields(draw: st.DrawFn) -> bytes:
    """A header with the right shape and one field, or the number of them, wrong."""
    message = draw(messages())
    array = [KINDS[type(message)], *message]
    at = draw(st.integers(0, len(array)))
    if at == len(array):
        array.append(draw(plain_scalars()))
    elif draw(st.booleans()):
        array[at] = draw(plain_values())
    else:
        del array[at]
    return cbor2.dumps(array)


def hostile_headers() -> SearchStrategy[bytes]:
    """Mostly invalid headers: any bytes, damaged bytes, wrong fields, wrong CBOR."""
    return st.one_of(st.binary(max_size=60), damaged(headers()), _wrong_fields(), hostile_items())


def hostile_bodies() -> SearchStrategy[bytes]:
    """Bodies that mostly cannot be decoded."""
    return st.one_of(st.binary(max_size=200), damaged(bodies()), hostile_items())


def hostile_frames() -> SearchStrategy[list[bytes]]:
    """Mostly invalid messages: wrong headers or bodies, too few or too many frames."""
    any_header = st.one_of(headers(), hostile_headers())
    return st.one_of(
        st.lists(st.one_of(any_header, hostile_bodies()), min_size=1, max_size=4),
        st.tuples(any_header, hostile_bodies()).map(list),
    )
