"""The options of a call: for type checkers, which find a wrong option before the call,
and checked."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from ..core.client import MOST_SECONDS, CallKey, Terms
from ..core.errors import ConfigError
from ..core.key_records import KeyAct, KeyName, input_digest
from ..core.limits import KIB, WireLimits
from ..core.messages import MAX_UINT, is_traceparent
from ..core.terms import SentBody
from ..core.values import TooMuchWork, encode_to_send
from ..envs.request import NO_ROLES, Kind, RolloutRequest, check_members, check_stored
from ..near import check_names


class CallOptions(TypedDict, total=False):
    """The options of every call; see :meth:`.Client.run_rollout`."""

    model: str
    """``"oracle"`` (the default: the environment's own right answers), ``"random"``, or an endpoint
    that the server knows."""
    model_name: str
    """The model's name at its endpoint."""
    sampling_args: Mapping[str, Any] | None
    """Fields of each request to the model, such as ``temperature`` and ``max_tokens``."""
    roles: Mapping[str, str] | None
    """Endpoints of further models, by the roles in which the environment asks them:
    ``{"judge": "big"}``.  A role that is not here has the endpoint of its own name in the workers'
    file of endpoints."""
    max_retries: int
    """Most repetitions of a rollout that failed, by its worker, inside the one execution."""
    state_columns: Sequence[str]
    """Which columns of the state to send back."""
    rerun: bool | None
    """Consent to a further execution after the worker's proven death; None: as the
    environment declares."""
    max_executions: int | None
    """Most executions over the whole life of the call; None: 4. Only consent allows a second
    one."""
    key: str | None
    """Names the work.  Whoever asks again under the same key, from whatever process, joins
    it or gets its outcome; nothing runs a second time."""
    namespace: str
    """The owner of the keys."""
    timeout_s: float | None
    """Longest wait of the caller in seconds, after which the server stops the execution, too; with
    a key only the wait, since the work goes on. None: as long as the caller's cancel scope
    allows."""
    execution_s: float | None
    """Longest time of one execution in seconds, from its dispatch on: a request that waits for a
    worker loses nothing of it.  The server's own limit, if it is less, holds.  The error is
    :class:`~trio_envserve.ExecutionLimit`.  Of a key, that of the call that opened it holds."""
    grace_s: float | None
    """Time after ``timeout_s`` or ``execution_s`` in seconds, in which the rollout is late and may
    still give what it has: the result has ``stop: "deadline"`` then.  After both the call ends as
    without a grace.  With a key it belongs to ``execution_s``."""
    working_s: float | None
    """Longest time of one execution in seconds, less the time in which the rollouts waited for the
    model's endpoint.  The error is :class:`~trio_envserve.ExecutionLimit`.  Code that ignores its
    cancel is ended by ``execution_s`` or ``timeout_s`` only: give one of them, too.  With a key it
    is a part of the input."""
    traceparent: str | None
    """The span below which its spans are, as in the HTTP header of that name; None: the
    current one of this process, if it keeps traces."""


DEFAULT_NAMESPACE = "default"
_DEFAULT = DEFAULT_NAMESPACE.encode()

HASHED_AT_ONCE = 1 << 20
"""Larger inputs of keyed calls are hashed in a thread: a mebibyte takes a millisecond."""

MOST_NAME_BYTES = 32 * KIB
"""Most bytes of a key or a namespace.  A server has a smaller bound of its own and refuses longer
ones in words; a name that does not fit into a header it could not even refuse."""


_NO_TERMS = Terms()


class Asked(NamedTuple):
    """A call's input and options."""

    request: Mapping[str, Any]
    """The body, but for its input: the same for all calls with equal options."""
    input: Any
    terms: Terms
    """Terms of the call without the key, which is that of one input (:meth:`terms_of`)."""
    name: KeyName | None = None
    """Name of the key."""

    def encoded(self, limits: WireLimits, **how: Any) -> SentBody:
        """The body as it goes to the server, as :func:`.values.encode_to_send` makes it.  With
        a key it is compared with others, and the order in which dicts were filled is no part of
        it."""
        body = {**self.request, "input": self.input}
        return encode_to_send(body, root="", limits=limits, sort_keys=self.name is not None, **how)

    def terms_of(self, body: SentBody) -> Terms:
        """Terms of the call with this body."""
        terms, name = self.terms, self.name
        if name is None:
            return terms
        return terms._replace(key=CallKey(KeyAct.ASK, name, input_digest(body, terms.rerun)))

    def at_once(self, limits: WireLimits) -> Encoded | None:
        """The call as it goes to the server; None if that takes long, and belongs into a thread.
        Raises EncodingError."""
        try:
            body = self.encoded(limits, at_once=True)
        except TooMuchWork:
            return None
        if self.name is not None and len(body) >= HASHED_AT_ONCE:
            return None
        return Encoded(body, self.terms_of(body))

    def encode(self, limits: WireLimits, pause: Callable[[], None] | None = None) -> Encoded:
        """The call as it goes to the server.  Raises EncodingError.

        Args:
            limits: Limits of the wire.
            pause: Called now and then, in a thread. Code of the input's own raises NotHere then.
        """
        body = self.encoded(limits, pause=pause)
        return Encoded(body, self.terms_of(body))

    def member(self, index: int | str, input: Any) -> Asked:
        """The call for one of many inputs; its key has a part for the index."""
        name = self.name
        if name is not None:
            name = name._replace(key=b"%s/%s" % (name.key, str(index).encode()))
        return Asked(self.request, input, self.terms, name)


class Encoded(NamedTuple):
    """An encoded call.  It holds nothing of the input, which may take many times as much memory."""

    body: SentBody
    terms: Terms


def checked(
    input: Any, *, kind: Kind = "rollout", model: str = "oracle",
    model_name: str = "", sampling_args: Mapping[str, Any] | None = None, max_retries: int = 0,
    state_columns: Sequence[str] = (), rerun: bool | None = None,
    max_executions: int | None = None, timeout_s: float | None = None,
    execution_s: float | None = None, grace_s: float | None = None,
    working_s: float | None = None, key: str | None = None,
    namespace: str = DEFAULT_NAMESPACE, traceparent: str | None = None,
    roles: Mapping[str, str] | None = None, **wrong: Any,
) -> Asked:  # fmt: skip
    """Input and options as they go to the server; ConfigError if one is wrong, TypeError for one
    that there is not."""
    check_names("a call (run_rollout() and the like)", wrong, CallOptions.__annotations__)
    columns = _columns(state_columns)
    if max_retries:  # anything else that is no number is refused with the others
        max_retries = natural("max_retries", max_retries)
    if working_s is not None:
        working_s = limit_of_execution(working_s, "working_s")
    request = _request(
        kind, model, model_name, sampling_args, max_retries, columns, roles, working_s
    )
    if kind == "group":
        check_members(input)
        input = list(input)
    elif kind == "rescore":
        check_stored(input)
    name = None if key is None else key_name(key, namespace)
    on_terms = rerun is not None or max_executions is not None or timeout_s is not None
    if not on_terms and traceparent is None and execution_s is None and grace_s is None:
        return Asked(request, input, _NO_TERMS, name)
    _checked_rerun(rerun)
    if max_executions is not None:
        max_executions = natural("max_executions", max_executions, least=1)
    if traceparent is not None and not is_traceparent(traceparent):
        raise ConfigError(f"traceparent must be one of version 00, not {traceparent!r:.100}")
    limit_s, most_s = seconds(timeout_s), limit_of_execution(execution_s)
    if grace_s is not None:
        grace_s = limit_of_execution(grace_s, "grace_s")
        limit_s, most_s = _with_grace(limit_s, most_s, grace_s, is_keyed=name is not None)
    terms = Terms(rerun, max_executions, limit_s, None, traceparent, most_s, grace_s)
    return Asked(request, input, terms, name)


def several(inputs: Iterable[Any]) -> Iterable[Any]:
    """Inputs of many rollouts.  ConfigError for one input, whose keys or letters nobody means."""
    if isinstance(inputs, (Mapping, str, bytes, bytearray)):
        raise ConfigError(
            f"inputs must be a list with an input for each rollout, not {_shown(inputs)} "
            f"({type(inputs).__name__}); one input is a list of one"
        )
    return inputs


def _with_grace(
    limit_s: float | None, most_s: float | None, grace_s: float | None, *, is_keyed: bool
) -> tuple[float | None, float | None]:
    """The limits, each longer by the grace.  ConfigError if there is none to which it belongs.

    The time limit of a call with a key ends the wait and not the work, so it has no grace."""
    assert grace_s is not None
    if is_keyed and most_s is None:
        raise ConfigError(
            "grace_s of a call with a key belongs to execution_s, which is missing: the timeout_s "
            "of such a call ends the wait and not the work"
        )
    if most_s is None and (limit_s is None or limit_s >= MOST_SECONDS):
        raise ConfigError("grace_s belongs to a limit: give timeout_s or execution_s, too")
    if limit_s is not None and not is_keyed:
        limit_s += grace_s
    if most_s is not None:
        most_s = limit_of_execution(most_s + grace_s, "execution_s + grace_s")
    return limit_s, most_s


def _request(
    kind: Kind, model: str, model_name: str, sampling_args: Mapping[str, Any] | None,
    max_retries: int, columns: Any, roles: Mapping[str, str] | None, working_s: float | None,
) -> Mapping[str, Any]:  # fmt: skip
    """The body of these options, without an input."""
    any_input: Any = {"input": None, "value": None} if kind == "rescore" else (None,)
    request = RolloutRequest(
        kind=kind, input=any_input, endpoint=model, model_name=model_name,
        sampling_args={} if sampling_args is None else sampling_args, max_retries=max_retries,
        state_columns=columns, roles=NO_ROLES if roles is None else roles, working_s=working_s,
    )  # fmt: skip
    return request.to_body()


def key_name(key: str, namespace: str) -> KeyName:
    """A key of a caller, as it goes to the server; ConfigError if it is none."""
    is_default = namespace is DEFAULT_NAMESPACE  # as most are
    return KeyName(_DEFAULT if is_default else _name("namespace", namespace), _name("key", key))


def _name(what: str, text: str) -> bytes:
    if type(text) is str and 0 < len(text) <= MOST_NAME_BYTES and text.isascii():
        return text.encode()  # most are such
    if not isinstance(text, str) or not text:
        raise ConfigError(f"a {what} is a text that is not empty, not {text!r}")
    try:
        name = text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"a {what} that cannot be encoded: {error}") from None
    if len(name) > MOST_NAME_BYTES:
        raise ConfigError(f"a {what} has at most {MOST_NAME_BYTES} bytes, this one {len(name)}")
    return name


def natural(name: str, value: Any, least: int = 0) -> int:
    """A whole number of any kind that the wire has.  ConfigError for anything else."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not least <= number < MAX_UINT:
        shown = _shown(value)
        raise ConfigError(f"{name} must be a number >= {least} and below 2**63, not {shown}")
    return number


def _shown(value: Any) -> str:
    """A wrong value, for people.  Its own code, and a number of very many digits, may fail."""
    try:
        return f"{value!r:.100}"
    except Exception as error:  # it is the caller's code, or int's bound on digits
        return f"a {type(value).__name__} ({type(error).__name__})"


def _checked_rerun(rerun: Any) -> None:
    if rerun is not None and not isinstance(rerun, bool):
        raise ConfigError(f"rerun must be True, False or None, not {_shown(rerun)}")


def seconds(timeout_s: Any, name: str = "timeout_s") -> float | None:
    """A limit of any numeric kind, as a float.  ConfigError, with its name, if it is none."""
    if timeout_s is None:
        return None
    # numpy counts a timedelta64 as an integer, in whatever unit.
    is_number = getattr(getattr(timeout_s, "dtype", None), "kind", "f") in "iuf"
    try:
        seconds = float(timeout_s) if is_number and not isinstance(timeout_s, (bool, str)) else -1.0
    except OverflowError:
        seconds = math.inf if timeout_s > 0 else -1.0
    except (TypeError, ValueError):
        seconds = -1.0
    if not seconds > 0:
        raise ConfigError(f"{name} must be a positive number, not {_shown(timeout_s)}")
    return seconds


def limit_of_execution(execution_s: Any, name: str = "execution_s") -> float | None:
    """Longest time of an execution in seconds: finite, unlike the wait of a caller."""
    most_s = seconds(execution_s, name)
    if most_s is not None and most_s >= MOST_SECONDS:
        raise ConfigError(f"{name} must be a positive number below {MOST_SECONDS:g}, not {most_s}")
    return most_s


def _columns(columns: Any) -> Any:
    """A string is a sequence of strings, too, but nobody means that.  The request
    reports other mistakes."""
    if type(columns) is tuple:
        return columns
    is_several = isinstance(columns, Sequence) and not isinstance(columns, str)
    return tuple(columns) if is_several else columns
