"""Rollouts for TRL: the ``rollout_func`` of its ``GRPOTrainer``, and a rollout worker of its
``AsyncGRPOTrainer``.

Theory of operation
-------------------
``GRPOTrainer`` hands over the prompts of a step, each as often as its group has members,
wants exactly one row of tokens for each, and makes the baselines itself, without rows whose
reward is None.  So what cannot be trained on is a masked row; its reward is None if the rollout
failed.  Of several segments the last one is the row, and how many are left out is said.

``AsyncGRPOTrainer`` takes rows from a queue and wants an advantage in each.  Its worker
asks for groups as long as the trainer takes them, and puts all segments of a group into
the queue when its last rollout is there.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, Unpack

from ..client.options import CallOptions
from ..client.outcome import Outcome
from ..client.plain import PlainClient
from ..core.errors import EnvServeError, NeverStarted
from .calls import SAMPLING, sampling_args
from .forms import trl_row, trl_samples
from .samples import SampledGroup, SampledRollout, sampled_group, sampled_rollout

logger = logging.getLogger(__name__)

InputOf: TypeAlias = Callable[[Any, str], Any]
"""The input of a rollout for a prompt (or row), and the id of the rollout."""

READY_S = 120.0
"""Seconds that the first call waits for a server that is not ready."""

IN_FLIGHT = 128
"""Number of rollouts that a worker asks for at a time if the trainer does not say."""


class NothingToTrain(EnvServeError):
    """No rollout of a whole step, or of several groups in a row, can be trained on."""


class RolloutFunc:
    """A ``rollout_func`` whose rollouts run on an environment server::

        GRPOTrainer(
            ...,
            rollout_func=RolloutFunc("tcp://127.0.0.1:5555", model="policy"),
            reward_funcs=rollout_reward,
        )

    ``model`` is the endpoint that serves the trainer's weights, under the name that the
    server's workers know.  Its token ids and log-probabilities are taken as they are.

    ``input_of(prompt, rollout)`` makes the input of a rollout from the ``prompt`` of its
    row; by default that is the prompt if it is a mapping, else ``{"prompt": prompt}``.  The
    id of the rollout, as text, has the step, the process and the number of the row.

    Sampling arguments are the trainer's (:data:`.SAMPLING`; ``max_completion_length`` is
    ``max_tokens`` of each model call), so that its log-probabilities are of the same
    distribution; ``sampling_args`` override them.  Without ``logprobs``, none are expected of
    the endpoint, and TRL corrects nothing.  Further options are those of each call; a ``key``
    is completed by the id of the rollout.

    A rollout that failed, or that has no tokens, is in no baseline and in no gradient.
    Raises :class:`NothingToTrain` if that holds for all rollouts of a call.
    """

    def __init__(
        self, address: str, *, input_of: InputOf | None = None, logprobs: bool = True,
        client: PlainClient | None = None, **options: Unpack[CallOptions],
    ) -> None:  # fmt: skip
        self._address = address
        self._input_of = _input_of if input_of is None else input_of
        self._logprobs = logprobs
        self._client = client
        self._options = options
        self._calls: dict[str, int] = {}
        """Number of calls in the present step."""
        self._forked_told = False

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """One row for each prompt, with the fields of :func:`.trl_row`, of which reward functions
        get those that begin with ``rollout_``."""
        batch = self._batch(trainer)
        inputs = [
            self._input_of(prompt, f"{batch}/{number}") for number, prompt in enumerate(prompts)
        ]
        rollouts = [
            sampled_rollout(outcome, rollout=f"{batch}/{number}", logprobs=self._logprobs)
            for number, outcome in enumerate(self._outcomes(inputs, batch, trainer))
        ]
        if not any(each.trained for each in rollouts):
            raise NothingToTrain(f"none of {len(rollouts)} rollouts: {rollouts[0].masked}")
        _say_masked(batch, rollouts)
        self._say_forked(rollouts)
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        rows = [trl_row(rollout, tokenizer.pad_token_id or 0) for rollout in rollouts]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _batch(self, trainer: Any) -> str:
        """The id of a call: what a training that goes on from a checkpoint gives it again."""
        mode = "train" if trainer.model.training else "eval"
        step = f"{mode}-{trainer.state.global_step}"
        self._calls = {step: self._calls.get(step, 0) + 1}
        return f"{step}.{self._calls[step] - 1}-{trainer.accelerator.process_index}"

    def _outcomes(self, inputs: list[Any], batch: str, trainer: Any) -> list[Outcome]:
        if self._client is None:  # by the process that trains, which may be a fork
            self._client = PlainClient(self._address, name="trl")
            self._client.wait_ready(READY_S)
        found: list[Outcome] = [_NONE] * len(inputs)
        options = _asked(self._options, trainer.args, batch)
        with self._client.run_many(inputs, **options) as outcomes:
            for index, outcome in outcomes:
                found[index] = outcome
        return found

    def _say_forked(self, rollouts: Sequence[SampledRollout]) -> None:
        left_out = [sample for each in rollouts for sample in each.trained[:-1]]
        if left_out and not self._forked_told:
            self._forked_told = True
            logger.warning(
                "%d of %d rollouts have several segments, and TRL's GRPOTrainer takes one row of "
                "each rollout: the last segment is trained on, and the %d before it, with %d "
                "sampled tokens, are left out.  This is said once; the metric "
                "rollouts/segments_left_out has it for each step.  AsyncGRPOTrainer takes all.",
                sum(len(each.trained) > 1 for each in rollouts), len(rollouts), len(left_out),
                sum(sum(sample.response_mask) for sample in left_out),
            )  # fmt: skip


def rollout_reward(
    completions: Sequence[Any], rollout_reward: Sequence[float | None], **fields: Any
) -> list[float | None]:
    """The rewards that the environment gave; a reward function for :class:`RolloutFunc`.

    None, not 0.0, is that of a rollout that failed.  Logs which part of the rollouts failed,
    and is masked, and which part of the segments that could be trained on is left out.
    """
    log_metric = fields.get("log_metric")
    if log_metric is not None and completions:
        size = len(completions)
        masked, left_out = fields["rollout_masked"], sum(fields["rollout_left_out"])
        rows = size - sum(map(bool, masked))
        log_metric("rollouts/failed", sum(each is None for each in rollout_reward) / size)
        log_metric("rollouts/masked", 1 - rows / size)
        log_metric("rollouts/segments_left_out", left_out / max(rows + left_out, 1))
    return list(rollout_reward)


class RolloutWorker:
    """A rollout worker of ``AsyncGRPOTrainer`` whose rollouts run on an environment server::

        args = AsyncGRPOConfig(...)
        AsyncGRPOTrainer(
            ...,
            args=args,
            rollout_worker=RolloutWorker("tcp://127.0.0.1:5555", dataset, args, model="policy"),
        )

    It goes through ``dataset`` again and again; each row is the input of ``num_generations``
    rollouts.  That, the rollouts in flight (``max_inflight_tasks``), the size of the queue and
    the sampling arguments are those of ``args``, the trainer's configuration; ``sampling_args``
    override the last.  ``input_of(row, rollout)`` makes another input of a row; ``rollout`` is
    the id of the rollout, with the numbers of its group and member.

    Advantages are over the rollouts of a group that count; each segment of a rollout is a row
    of its own with its advantage.  A rollout that failed, or that has no tokens or
    log-probabilities, is left out.  The version of a row is that of the weights when its group
    began.  Where the last ``most_failed`` groups had nothing to train on, :meth:`check_health`
    raises :class:`NothingToTrain`.

    A ``key`` is completed by a random part of this worker's and the number of the rollout:
    groups are numbered anew by each worker, so that a trainer that was started again must not
    find those of old weights under their keys.
    """

    def __init__(
        self, address: str, dataset: Sequence[Mapping[str, Any]], args: Any, *,
        most_failed: int = 8, input_of: InputOf | None = None, **options: Unpack[CallOptions],
    ) -> None:  # fmt: skip
        if not len(dataset):
            raise ValueError("the dataset has no rows")
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(args.queue_maxsize)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue(4096)
        self._address = address
        self._dataset = dataset
        self._args = args
        self._size: int = args.num_generations
        self._most_failed = most_failed
        self._input_of = _row_of if input_of is None else input_of
        self._options = options
        self._version = 0
        self._groups: dict[int, _Group] = {}
        self._failed_groups = 0
        self._client: PlainClient | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._moved_at = time.monotonic()

    # -- the trainer's side -------------------------------------------------------

    def start(self) -> None:
        """Begin.  Waits until the server is ready."""
        self._client = PlainClient(self._address, name="trl")
        self._client.wait_ready(READY_S)
        self._moved_at = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, args=(self._client,), name="rollouts", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End; rollouts under way are cancelled.  May be called again."""
        self._stopping.set()
        if self._client is not None:
            self._client.close()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def update_model_version(self, model_version: int) -> None:
        """Take the number of the weights that the engine has now."""
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raise the error that ended the worker, or ``RuntimeError`` if no rollout came in time."""
        if self._error is not None:
            raise RuntimeError(f"no more rollouts: {self._error}") from self._error
        silent_s = time.monotonic() - self._moved_at
        if silent_s > stale_after_s:
            raise RuntimeError(
                f"no rollout came for {silent_s:.0f} s (heartbeat_stale_after_s is "
                f"{stale_after_s:.0f}): see trio-envserve status {self._address} --slow 20"
            )

    # -- its own thread -----------------------------------------------------------

    def _run(self, client: PlainClient) -> None:
        # The trainer completes its configuration after this worker is made.
        in_flight = self._args.max_inflight_tasks
        options = _asked(self._options, self._args, uuid.uuid4().hex[:16])
        options["in_flight"] = in_flight if in_flight > 0 else IN_FLIGHT
        try:
            with client.run_many(self._inputs(), **options) as outcomes:
                for index, outcome in outcomes:
                    if self._stopping.is_set():
                        return
                    self._moved_at = time.monotonic()
                    self._take(index, outcome)
        except BaseException as error:  # told to the trainer, whose thread is another one
            if not self._stopping.is_set():
                self._error = error

    def _inputs(self) -> Iterator[Any]:
        number = 0
        while not self._stopping.is_set():
            row = self._dataset[number % len(self._dataset)]
            self._groups[number] = _Group(row, self._version)
            for member in range(self._size):
                yield self._input_of(row, f"{number}/{member}")
            number += 1

    def _take(self, index: int, outcome: Outcome) -> None:
        number, member = divmod(index, self._size)
        group = self._groups[number]
        group.found[member] = outcome
        if len(group.found) == self._size:
            del self._groups[number]
            found = [outcome for _, outcome in sorted(group.found.items())]
            sampled = sampled_group(found, group=str(number))
            self._hand_over(sampled, _rows(sampled, group, number))

    def _hand_over(self, group: SampledGroup, rows: list[Any]) -> None:
        _say_masked("a group", group.rollouts)
        masked = [each.masked for each in group.rollouts if each.masked]
        self._failed_groups = 0 if rows else self._failed_groups + 1
        if self._failed_groups >= self._most_failed:
            raise NothingToTrain(f"none of the last {self._failed_groups} groups: {masked[0]}")
        figures = {
            "rollout/failed_total": float(self._size - group.count),
            "rollout/masked_total": float(len(masked)),
            "rollout/samples_per_rollout": len(rows) / self._size,
        }
        try:
            self.metrics_queue.put_nowait(figures)
        except queue.Full:
            pass  # a trainer that does not log; rollouts matter more
        for row in rows:
            self._put(row)

    def _put(self, row: Any) -> None:
        while not self._stopping.is_set():
            try:
                row.enqueued_at = time.time()
                self.rollout_buffer.put(row, timeout=0.5)
            except queue.Full:
                self._moved_at = time.monotonic()  # it is the trainer that is slow
            else:
                return


@dataclasses.dataclass
class _Group:
    """A group while its rollouts run."""

    row: Mapping[str, Any]
    version: int
    found: dict[int, Outcome] = dataclasses.field(default_factory=dict)
    """Outcomes by member."""


def _rows(sampled: SampledGroup, group: _Group, number: int) -> list[Any]:
    """TRL's type of a row for each segment."""
    import numpy as np
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    kinds = {"input_ids": np.int64, "completion_mask": np.int64, "old_log_probs": np.float32}
    return [
        RolloutSample(
            **{**fields, **{name: np.asarray(fields[name], kind) for name, kind in kinds.items()}}
        )
        for fields in trl_samples(
            sampled, group.row.get("prompt"), number=number, version=group.version
        )
    ]


def _asked(options: CallOptions, args: Any, part: str) -> dict[str, Any]:
    """The options of a call with the trainer's sampling arguments, and a key with its part."""
    # A trainer's seed is its own: with it, the members of a group would be one and the same.
    named = {name: getattr(args, name, None) for name in SAMPLING if name != "seed"}
    named |= getattr(args, "generation_kwargs", None) or {}
    template = args.chat_template_kwargs
    chat = {"chat_template_kwargs": template} if template else {}
    asked: dict[str, Any] = {**options}
    asked["sampling_args"] = {
        **sampling_args(named), **chat, **(options.get("sampling_args") or {}),
    }  # fmt: skip
    if options.get("key"):
        asked["key"] = f"{options['key']}/{part}"
    return asked


def _say_masked(whose: str, rollouts: Sequence[SampledRollout]) -> None:
    masked = [each for each in rollouts if each.masked]
    if masked:
        logger.warning(
            "%s: %d of %d rollouts are not trained on; %s: %s",
            whose, len(masked), len(rollouts), masked[0].rollout, masked[0].masked,
        )  # fmt: skip
    if some := [sample for each in rollouts for sample in each.left_out]:
        logger.warning(
            "%s: %d segments of rollouts that are trained on are not; %s: %s",
            whose, len(some), some[0].rollout, some[0].masked,
        )  # fmt: skip


def _input_of(prompt: Any, rollout: str) -> Any:
    return prompt if isinstance(prompt, Mapping) else {"prompt": prompt}


def _row_of(row: Any, rollout: str) -> Any:
    return row


_NONE = Outcome.failed(NeverStarted("the call was interrupted"))
