"""Accounts: whoever takes turns and shares the bounds of a server, and the one share rule (G8).

A client's session is an account, and so is a namespace of keys.  An account may take its
share of what the *others* leave of a bound.  One that takes all that it may leaves the next
one the same share of the rest, so a few that give nothing back do not use up a bound.  Many
do so nearly, and what runs when a bound is reached may pass it; therefore each account also
has a part of its own, which no other can take.  All parts together are as large as the
bound, so at most twice the bound is used, and what was running.

Clients choose namespaces, so there may be any number of these: the next one gets a small
part of what was not given away.  The number of sessions is bounded, and their parts are alike.
"""

from __future__ import annotations

import dataclasses
from typing import final

from .limits import KeyLimits, ServerLimits
from .terms import SessionId, one_line

WHOLE = 1 << 48
"""All parts of a bound: they are whole numbers, so what is given back is what was taken."""

NAME_BYTES = 128
"""Longest name of a namespace's account, which stands in logs."""


@dataclasses.dataclass(slots=True)
class Usage:
    """The part of the bounds that is taken: by one account, or by all together."""

    waiting: int = 0
    """Number of works that wait for a worker, and of requests that are answered by what ran for
    another account, or never ran."""
    held_bytes: int = 0
    """Bytes of bodies, waiting or held for a further execution, and of what was saved for it."""
    running_count: int = 0
    kept_count: int = 0
    """Outcomes that are kept for its clients."""
    kept_unrun: int = 0
    """Kept outcomes that did not run for this account: each takes a place in the queue."""
    kept_bytes: int = 0
    """Bytes of kept outcomes, and of those under way from a worker."""
    announced_bytes: int = 0
    """Bytes of outcomes that wait at their workers for room."""
    works: int = 0
    """Works that are held for their keys: not closed, or closed while an execution lives."""
    own_bytes: int = 0
    """Bytes of their names, and of bodies that wait for an earlier generation."""
    outcome_bytes: int = 0
    """Bytes of their outcomes, for as long as a work or a request holds them."""

    @property
    def size_bytes(self) -> int:
        """Bytes that count against ``retained_bytes``."""
        return self.own_bytes + self.outcome_bytes


@dataclasses.dataclass(slots=True, eq=False)
class Account(Usage):
    """An account, its usage, and the numbers that decide about its works."""

    id: SessionId = b""
    """Under it workers know the works; that of a namespace is said to no client."""
    name: str = ""
    namespace: bytes = b""
    """The namespace of keys; empty for a session."""
    share: float = 0.5
    part: int = 0
    """Part of each bound that is this account's own, of :data:`WHOLE`."""
    message_bytes: int = 2**63
    """The largest frame that its client takes; a namespace has none."""
    live_executions: int = 0
    """Executions on workers, those that nobody waits for included."""
    orphan_s: float = 0.0
    """Time for which a work goes on for callers whose sessions were lost, in seconds."""
    retention_s: float = 0.0
    """Time for which an outcome is retained after the last caller has left, in seconds; 0: until it
    is told."""


@final
class Accounts:
    """All accounts, and whether there is room for more."""

    def __init__(self, limits: ServerLimits, keys: KeyLimits) -> None:
        self.limits = limits
        self.keys = keys
        self.all = Usage()
        """The usage of all together."""
        self.namespaces: dict[bytes, Account] = {}
        """Accounts of namespaces with a work or a retained outcome."""
        self.at_work: set[bytes] = set()
        """Namespaces with a work that waits or runs, and some that had one."""
        self.of_id: dict[SessionId, Account] = {}
        """Accounts of namespaces by the ids under which workers know them."""
        self._parts_left = WHOLE
        self._of_session = -(-WHOLE // limits.sessions)

    def of_session(self, id: SessionId, name: str) -> Account:
        """The account of a new session."""
        return Account(id=id, name=name, share=self.limits.session_share, part=self._of_session)

    def open(self, namespace: bytes, id: SessionId) -> Account:
        """The account of a namespace that has none."""
        opened = self.namespaces[namespace] = self.of_id[id] = Account(
            id=id, name=one_line(f"keys of {namespace.decode('utf-8', 'replace')}", NAME_BYTES),
            namespace=namespace,
            share=self.keys.namespace_share, part=self._next_part(),
            orphan_s=self.keys.orphan_s, retention_s=self.keys.retention_s,
        )  # fmt: skip
        self._parts_left -= opened.part
        return opened

    def usage(self, namespace: bytes) -> Usage:
        """The usage of a namespace; empty: that of all."""
        return self.namespaces.get(namespace, Usage()) if namespace else self.all

    def leave(self, account: Account) -> None:
        """Drop a namespace's account if nothing of it is there any more."""
        known = self.namespaces.get(account.namespace) is account
        if known and not account.works and not account.outcome_bytes:
            del self.of_id[account.id]
            self._parts_left += account.part
            self.at_work.discard(account.namespace)
            del self.namespaces[account.namespace]

    def _next_part(self) -> int:
        return self._parts_left // self.keys.namespaces

    # -- the share rule ---------------------------------------------------------

    def most(self, account: Account | None, bound: int, others: int) -> float:
        """The part of a bound that an account may have, where the others have so much.  None: a
        namespace of which nothing is there yet."""
        if account is None:
            share, part = self.keys.namespace_share, self._next_part()
        else:
            share, part = account.share, account.part
        return max(share * (bound - others), bound * part // WHOLE)

    def may_wait(self, account: Account | None, size_bytes: int) -> bool:
        """Whether one more request with a body of so many bytes may wait.  A body larger than
        its bound may wait, but alone."""
        limits, taken = self.limits, self.all
        mine, mine_bytes = (0, 0) if account is None else (account.waiting, account.held_bytes)
        if mine and mine >= self.most(account, limits.queue, taken.waiting - mine):
            return False
        fits = not taken.held_bytes or taken.held_bytes + size_bytes <= limits.queue_bytes
        if not mine_bytes and fits:
            return True
        most_bytes = self.most(account, limits.queue_bytes, taken.held_bytes - mine_bytes)
        return mine_bytes + size_bytes <= most_bytes

    def may_run(self, account: Account) -> bool:
        """Whether there is room for the outcome of one more execution.

        An account of which nothing runs or is kept always has it: so at the bound each goes
        on, with at least one execution at a time.
        """
        limits, taken, most = self.limits, self.all, self.most
        ran = taken.running_count + taken.kept_count - taken.kept_unrun
        mine = account.running_count + account.kept_count - account.kept_unrun
        if not mine:
            return True
        kept_bytes, waiting_bytes = account.kept_bytes, account.announced_bytes
        return (
            mine < most(account, limits.kept_outcomes, ran - mine)
            and kept_bytes + waiting_bytes
            < most(account, limits.kept_bytes, taken.kept_bytes - kept_bytes)
            and waiting_bytes
            < most(account, limits.announced_bytes, taken.announced_bytes - waiting_bytes)
        )

    def may_keep(self, account: Account, size_bytes: int) -> bool:
        """Whether there is room for an outcome that its worker has announced.

        An account of which nothing is kept gets room for an outcome that is larger than what
        is left, unless the bound is passed already: so the largest outcome arrives, too, and
        the bound is passed by one outcome at most.
        """
        mine_bytes, most_bytes = account.kept_bytes, self.limits.kept_bytes
        others_bytes = self.all.kept_bytes - mine_bytes
        if not mine_bytes and others_bytes <= most_bytes:
            return True
        return mine_bytes + size_bytes <= self.most(account, most_bytes, others_bytes)

    def may_save(self, account: Account, more_bytes: int) -> bool:
        """Whether there is room for the save of a work that runs, which takes so many bytes more
        than the one before."""
        mine_bytes = account.held_bytes
        others_bytes = self.all.held_bytes - mine_bytes
        most_bytes = self.most(account, self.limits.queue_bytes, others_bytes)
        return more_bytes <= 0 or mine_bytes + more_bytes <= most_bytes

    def may_open(self, namespace: bytes, own_bytes: int) -> bool:
        """Whether there is room for another key, with a name and a held body of so many bytes."""
        keys, taken = self.keys, self.all
        taken_bytes = taken.size_bytes
        account = self.namespaces.get(namespace)
        works, size_bytes = (0, 0) if account is None else (account.works, account.size_bytes)
        if works >= self.most(account, keys.generations, taken.works - works):
            return False
        if not taken_bytes:  # what is larger than the bound may be there, but alone
            return True
        most_bytes = self.most(account, keys.retained_bytes, taken_bytes - size_bytes)
        return size_bytes + own_bytes <= most_bytes

    def may_retain(self, account: Account) -> bool:
        """Whether another outcome may be retained: so long more is dispatched."""
        mine_bytes = account.outcome_bytes
        others_bytes = self.all.outcome_bytes - mine_bytes
        return mine_bytes < self.most(account, self.keys.retained_bytes, others_bytes)

    def may_work(self, namespace: bytes, size_bytes: int) -> bool:
        """Whether a work of this namespace may wait for a worker: there are not too many of
        which something waits or runs, and there is room in the queue."""
        if namespace not in self.at_work and len(self.at_work) >= self.keys.namespaces:
            idle = {each for each in self.at_work if self._is_idle(self.namespaces[each])}
            self.at_work -= idle
            if not idle:
                return False
        return self.may_wait(self.namespaces.get(namespace), size_bytes)

    def of_commands(self, mine: int, others: int) -> bool:
        """Whether a namespace that has so many commands may have another one remembered."""
        return mine < self.keys.namespace_share * (self.keys.commands - others)

    # -- what is counted --------------------------------------------------------

    def wait(self, account: Account, change: int) -> None:
        """Count what waits in the queue."""
        self.all.waiting += change
        account.waiting += change

    def hold(self, account: Account, change_bytes: int) -> None:
        """Count bytes of bodies."""
        self.all.held_bytes += change_bytes
        account.held_bytes += change_bytes

    def run(self, account: Account, change: int) -> None:
        """Count works that run."""
        self.all.running_count += change
        account.running_count += change

    def keep(self, account: Account, change: int, change_bytes: int, *, ran: bool) -> None:
        """Count kept outcomes; one that did not run here takes a place in the queue."""
        taken = self.all
        taken.kept_count += change
        account.kept_count += change
        taken.kept_bytes += change_bytes
        account.kept_bytes += change_bytes
        if not ran:
            taken.kept_unrun += change
            account.kept_unrun += change
            taken.waiting += change
            account.waiting += change

    def reserve(self, account: Account, change_bytes: int) -> None:
        """Count bytes of outcomes that workers send; negative when they have arrived."""
        self.all.kept_bytes += change_bytes
        account.kept_bytes += change_bytes

    def announce(self, account: Account, change_bytes: int) -> None:
        """Count bytes of outcomes that wait at workers; negative when they wait no longer."""
        self.all.announced_bytes += change_bytes
        account.announced_bytes += change_bytes

    def retain(self, account: Account, works: int, own_bytes: int, outcome_bytes: int) -> None:
        """Count works that are held for their keys, and their bytes."""
        taken = self.all
        taken.works += works
        account.works += works
        taken.own_bytes += own_bytes
        account.own_bytes += own_bytes
        taken.outcome_bytes += outcome_bytes
        account.outcome_bytes += outcome_bytes

    @staticmethod
    def _is_idle(account: Account) -> bool:
        return not account.waiting and not account.live_executions
