"""The handlers of the messages of clients: the part of the router that clients talk to.

Theory of operation
-------------------
A message is read, its sender's rights are looked at, and its function is called
(:data:`_HANDLERS`).  These functions are of the :class:`~.router.Router`, as the steps of a
request are of the cache (:mod:`.request_table`): they know who asks and in which session, and
leave to cache and dispatcher what becomes of a request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import messages
from .errors import ProtocolError
from .key_answers import Confirm, Page
from .keyed import keyed
from .limits import PROTOCOL_VERSION
from .messages import ForeignVersion
from .ranges import Ranges
from .requests import Ask, Session
from .router_effects import TellStats, ToClient
from .router_inputs import ClientMessage
from .terms import Body, Epoch, RequestId, Route, SessionId, one_line, short

if TYPE_CHECKING:
    from .router import Router


def take(router: Router, given: ClientMessage) -> None:
    """Read a message of a client, and do what it asks."""
    route, frames, now_s = given
    if now_s > router._clock.last_s:  # of those that come together the first one reads it
        router._clock.read(now_s)
    try:
        rows = messages.read(frames, most_bytes=router.wire.header_bytes)
        kind = type(rows[0][0])
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise ProtocolError(f"{kind.__name__} from a client")
    except ProtocolError as error:
        code = "foreign-version" if isinstance(error, ForeignVersion) else "malformed"
        router.count_malformed(f"client {short(route)}: {error}")
        router.dispatcher.send(route, messages.Error(PROTOCOL_VERSION, code, str(error)))
        return
    for message, body in rows:
        if router.rights.on and (answer := router.rights.refusal(route, message, router.cache)):
            router.dispatcher.send(route, answer)
        elif body is None:
            handler(router, route, message)
        else:
            _request(router, route, message, body, now_s)
    router.dispatcher.schedule()


def _hello(router: Router, route: Route, hello: messages.Hello) -> None:
    name = one_line(hello.name, router.wire.name_bytes)
    session = router.cache.open(
        router._new_id(), hello.nonce, name, route, hello.connection, router._clock.awake_s
    )
    if session is None:
        text = router.cache.no_session(hello.nonce, route)
        router.dispatcher.warn(f"client {short(route)} ({name}) gets no session: {text}")
        router.dispatcher.send(route, messages.Error(PROTOCOL_VERSION, "no-session", text))
        return
    session.message_bytes = hello.message_bytes
    if router.rights.on:
        session.owner = router.rights.owner(route)
    welcome = messages.Welcome(
        PROTOCOL_VERSION, hello.nonce, session.id, router.epoch, router.limits.window,
        router.wire.message_bytes, router.status(),
    )  # fmt: skip
    router.dispatcher.send(route, welcome)


def _session(
    router: Router, route: Route, session_id: SessionId, epoch: Epoch = b""
) -> Session | None:
    """The session of a message, heard just now; or None, and the sender is told."""
    session = router.cache.sessions.get(session_id)
    if session is not None and not session.ended:
        router.cache.heard(session, router._clock.awake_s)
        return session
    ours = epoch == router.epoch and session is None
    gone = ours or epoch in router.dead_epochs
    settled = ours and router.cache.settled(session_id)
    router.dispatcher.send(route, messages.Unknown(session_id, gone, router.epoch, settled))
    return None


def _request(router: Router, route: Route, request: Any, body: Body, now_s: float) -> None:
    session = _session(router, route, request.session)
    if session is None:
        return
    sequence = request.sequence
    if len(body) > router.wire.message_bytes or not request.allowance:
        text = f"a body of {len(body)} bytes, an allowance of {request.allowance}"
        refusal = messages.Refused(session.id, sequence, "refused", text, None)
        router.dispatcher.send(route, refusal)
        return
    allowance = min(request.allowance, router.limits.max_executions)
    key = keyed(request, session.owner) if isinstance(request, messages.KeyedRequest) else None
    ask = Ask(
        request.digest, body, request.rerun, allowance, key, request.traceparent,
        request.execution_s,
    )  # fmt: skip
    fresh = sequence not in session.entries
    router.dispatcher.do(session, router.cache.request(session, sequence, ask), route)
    if sequence not in session.entries or not fresh:
        return
    if key is None and router.dispatcher.answer_fresh(session, sequence):
        return
    if request.deadline_s is not None:
        router.dispatcher.deadlines.add(now_s + request.deadline_s, session, sequence)


def _finish(router: Router, route: Route, finish: messages.Finish) -> None:
    session = _session(router, route, finish.session)
    if session is not None:
        router.dispatcher.do(
            session, router.cache.finish_spans(session, Ranges.from_flat(finish.finished))
        )


def _sync(router: Router, route: Route, sync: messages.Sync) -> None:
    session = _session(router, route, sync.session, sync.epoch)
    if session is None:
        return
    router.cache.moved(session, route, sync.connection)
    # A newer probe says that the answer to the one before has arrived: what was
    # sent before that, and is still asked for, is lost.
    sent_before = session.probe if sync.probe > session.probe else 0
    effects, missing = router.cache.sync(
        session, sync.next, Ranges.from_flat(sync.pending), sent_before
    )
    router.dispatcher.do(session, effects)
    session.probe = max(session.probe, sync.probe)
    answer = messages.Synced(session.id, sync.probe, missing.flat(), router.status())
    router.dispatcher.send(session.route, answer)


def _cancel(router: Router, route: Route, cancel: messages.Cancel | messages.KeyedCancel) -> None:
    session = _session(router, route, cancel.session)
    if session is None:
        return
    entry = session.entries.get(cancel.sequence)
    keyed, journal = router.dispatcher.keyed, router.dispatcher.journal
    request, before = RequestId(session.id, cancel.sequence), journal.appended
    is_decided = keyed.answers.is_decided(request)
    if is_decided and entry is None:
        return  # it comes again, and its answer waits for the journal
    # Of a key for which this session has not asked, others may have started the work.
    started = isinstance(cancel, messages.KeyedCancel)
    if entry is not None and entry.key is not None:
        started = keyed.leave(entry)
    effects, was_started = router.cache.cancel(session, cancel.sequence)
    started |= was_started
    router.dispatcher.do(session, effects)
    if is_decided or journal.appended > before:
        keyed.answers.tell(Confirm(request, started))
    else:
        router.dispatcher.send(session.route, messages.Cancelled(*request, started))


def _ask_stats(router: Router, route: Route, ask: messages.AskStats) -> None:
    # One record for all who ask in one turn: making it costs far more than asking.
    made_s, stats = router._told
    if made_s != router._clock.last_s:
        stats = router.stats()
        router._told = router._clock.last_s, stats
    router.dispatcher.out.append(TellStats(route, ask.probe, stats))


def _ask_keys(router: Router, route: Route, ask: messages.AskKeys) -> None:
    if router.dispatcher.keyed.answers.is_decided(route):
        return  # it comes again, and an answer to it waits for the journal
    clock = router._clock
    page = router._key_pages.page(ask.namespace, ask.first, clock.awake_s, clock.last_s)
    answer = Page(route, messages.KnownKeys(ask.probe), messages.encode_record(page))
    if router.dispatcher.journal.failed:  # the status says that it is not safe
        router.dispatcher.out.append(ToClient(*answer))
    else:
        router.dispatcher.keyed.answers.tell(answer)


def _ask_running(router: Router, route: Route, ask: messages.AskRunning) -> None:
    page = router._running.page(ask.first, router._clock.awake_s, router._clock.last_s)
    said = messages.Running(ask.probe)
    router.dispatcher.out.append(ToClient(route, said, messages.encode_record(page)))


def _ask_stack(router: Router, route: Route, ask: messages.AskStack) -> None:
    clock = router._clock
    execution = router._running.find(ask.number, clock.last_s)
    router.dispatcher.out += router._stacks.ask(execution, route, ask.probe, clock.awake_s)


def _goodbye(router: Router, route: Route, goodbye: messages.Goodbye) -> None:
    session = router.cache.goodbye(goodbye.session)
    if session is not None and not session.ended:
        router.dispatcher.end(session, lost=False)


_HANDLERS: dict[type, Callable[..., None]] = {
    messages.Hello: _hello,
    messages.Request: _request,
    messages.KeyedRequest: _request,
    messages.Finish: _finish,
    messages.Sync: _sync,
    messages.Cancel: _cancel,
    messages.KeyedCancel: _cancel,
    messages.AskStats: _ask_stats,
    messages.AskKeys: _ask_keys,
    messages.AskRunning: _ask_running,
    messages.AskStack: _ask_stack,
    messages.Goodbye: _goodbye,
}
