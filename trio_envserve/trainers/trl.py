"""Rollouts for TRL: the ``rollout_func`` of its ``GRPOTrainer``, and a rollout worker of its
``AsyncGRPOTrainer``.

Theory of operation
-------------------
``GRPOTrainer`` hands over the prompts of a step, each as often as its group has members,
wants one row of tokens for each, and makes the baselines itself, without rows whose reward
is None.  So what cannot be trained on is a row of one token that is masked; its reward is
None if the rollout failed.  Of a rollout with several segments a row takes one: the last.

``AsyncGRPOTrainer`` takes rows from a queue and wants an advantage in each.  Its worker
asks for groups as long as the trainer takes them, and puts all segments of a group into
the queue when its last rollout is there.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, Unpack

from ..client.options import CallOptions
from ..client.outcome import Outcome
from ..client.plain import PlainClient
from ..core.errors import EnvServeError, NeverStarted
from .samples import Sample, SampledGroup, SampledRollout, sampled_group, sampled_rollout

logger = logging.getLogger(__name__)

InputOf: TypeAlias = Callable[[Any, str], Any]
"""The input of a rollout for a prompt (or row), and the id of the rollout."""

READY_S = 120.0
"""Seconds that the first call waits for a server that is not ready."""


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

    Sampling arguments are the trainer's (``temperature``, ``max_completion_length`` as
    ``max_tokens`` of each model call, and what else it sets), so that its log-probabilities
    are of the same distribution; ``sampling_args`` override them.  Without ``logprobs``,
    none are expected of the endpoint, and TRL corrects nothing.  Further options are those
    of each call; a ``key`` is completed by the id of the rollout.

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

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """One row for each prompt, with TRL's ``prompt_ids``, ``completion_ids``, ``logprobs`` and
        ``env_mask``, and for the reward functions ``rollout_reward``, ``rollout_result``,
        ``rollout_masked`` and ``rollout_segments``."""
        batch = self._batch(trainer)
        inputs = [
            self._input_of(prompt, f"{batch}/{number}") for number, prompt in enumerate(prompts)
        ]
        outcomes = self._outcomes(inputs, batch, trainer)
        rollouts = [
            sampled_rollout(outcome, rollout=f"{batch}/{number}", logprobs=self._logprobs)
            for number, outcome in enumerate(outcomes)
        ]
        _say(rollouts)
        if not any(each.trained for each in rollouts):
            raise NothingToTrain(f"none of {len(rollouts)} rollouts: {rollouts[0].masked}")
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        rows = [self._row(rollout, tokenizer.pad_token_id or 0) for rollout in rollouts]
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
        options = dict(self._options)
        options["sampling_args"] = {
            **_sampling_of(trainer.args), **(self._options.get("sampling_args") or {}),
        }  # fmt: skip
        if self._options.get("key"):
            options["key"] = f"{self._options['key']}/{batch}"
        found: list[Outcome] = [_NONE] * len(inputs)
        with self._client.run_many(inputs, **options) as outcomes:  # type: ignore[arg-type]  # as given
            for index, outcome in outcomes:
                found[index] = outcome
        return found

    def _row(self, rollout: SampledRollout, pad: int) -> dict[str, Any]:
        row = {
            "prompt_ids": [pad], "completion_ids": [pad], "logprobs": [0.0], "env_mask": [0],
            "rollout_reward": rollout.reward, "rollout_result": rollout.outcome.value,
            "rollout_masked": rollout.masked, "rollout_segments": len(rollout.samples),
        }  # fmt: skip
        if rollout.trained:
            sample = rollout.trained[-1]
            row["prompt_ids"], row["completion_ids"] = sample.prompt_ids, sample.response_ids
            row["env_mask"] = sample.response_mask
            # None is TRL's word for a log-probability that the engine did not give.
            row["logprobs"] = sample.logprobs or [None] * len(sample.response_ids)
        return row


def rollout_reward(
    completions: Sequence[Any], rollout_reward: Sequence[float | None], **fields: Any
) -> list[float | None]:
    """The rewards that the environment gave; a reward function for :class:`RolloutFunc`.

    None, not 0.0, is that of a rollout that failed.  Logs the part of the rollouts that
    failed, that are masked and that have several segments, of which one is trained on.
    """
    log_metric = fields.get("log_metric")
    if log_metric is not None and completions:
        size = len(completions)
        masked, segments = fields.get("rollout_masked", ()), fields.get("rollout_segments", ())
        log_metric("rollouts/failed", sum(each is None for each in rollout_reward) / size)
        log_metric("rollouts/masked", sum(map(bool, masked)) / size)
        log_metric("rollouts/forked", sum(number > 1 for number in segments) / size)
    return list(rollout_reward)


def _say(rollouts: Sequence[SampledRollout]) -> None:
    masked = [each for each in rollouts if each.masked]
    forked = sum(len(each.trained) > 1 for each in rollouts)
    if masked:
        logger.warning(
            "%d of %d rollouts are not trained on; %s: %s",
            len(masked), len(rollouts), masked[0].rollout, masked[0].masked,
        )  # fmt: skip
    if forked:
        logger.warning(
            "%d of %d rollouts have several segments: TRL's GRPOTrainer takes one row for each, so "
            "only the last segment is trained on (its asynchronous trainer takes all)",
            forked, len(rollouts),
        )  # fmt: skip


class RolloutWorker:
    """A rollout worker of ``AsyncGRPOTrainer`` whose rollouts run on an environment server::

        AsyncGRPOTrainer(
            ...,
            rollout_worker=RolloutWorker(
                "tcp://127.0.0.1:5555", dataset, model="policy", num_generations=8
            ),
        )

    It goes through ``dataset`` again and again; each row is the input of
    ``num_generations`` rollouts, of which at most ``in_flight`` are asked for at a time.
    ``input_of(row, rollout)`` makes another input of a row; ``rollout`` is the id of the
    rollout, with the numbers of its group and member.  Advantages are over the rollouts of
    a group that count; each segment of a rollout is a row of its own with its advantage.  A
    rollout that failed, or that has no tokens or log-probabilities, is left out.

    ``sampling_args`` must be the trainer's (``temperature`` above all).  A ``key`` is completed
    by a random part of this worker's and the number of the rollout: groups are numbered anew by
    each worker, so that a trainer that was started again must not find those of old weights
    under their keys.  The version of a row is that of the weights when its group began.

    Where the last ``most_failed`` groups had nothing to train on, :meth:`check_health` raises
    :class:`NothingToTrain`.
    """

    def __init__(
        self, address: str, dataset: Sequence[Mapping[str, Any]], *, num_generations: int,
        in_flight: int = 128, queue_size: int = 1024, most_failed: int = 8,
        input_of: InputOf | None = None, **options: Unpack[CallOptions],
    ) -> None:  # fmt: skip
        if not len(dataset):
            raise ValueError("the dataset has no rows")
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(queue_size)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue(4096)
        self._address = address
        self._dataset = dataset
        self._size = num_generations
        self._in_flight = in_flight
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
        """Raise what ended the worker; or ``RuntimeError`` if no rollout came for so long."""
        if self._error is not None:
            raise RuntimeError(f"no more rollouts: {self._error}") from self._error
        silent_s = time.monotonic() - self._moved_at
        if silent_s > stale_after_s:
            raise RuntimeError(
                f"no rollout came for {silent_s:.0f} s (heartbeat_stale_after_s is "
                f"{stale_after_s:.0f}): see trio-envserve status --slow --address {self._address}"
            )

    # -- its own thread -----------------------------------------------------------

    def _run(self, client: PlainClient) -> None:
        options = dict(self._options)
        if options.get("key"):
            options["key"] = f"{options['key']}/{uuid.uuid4().hex[:16]}"
        try:
            with client.run_many(
                self._inputs(),
                in_flight=self._in_flight,
                **options,  # type: ignore[arg-type]  # as given
            ) as outcomes:
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
            self._groups[number] = _Group(row, self._version, [None] * self._size)
            for member in range(self._size):
                yield self._input_of(row, f"{number}/{member}")
            number += 1

    def _take(self, index: int, outcome: Outcome) -> None:
        number, member = divmod(index, self._size)
        group = self._groups[number]
        if not group.add(member, outcome):
            return
        del self._groups[number]
        sampled = sampled_group(group.outcomes, group=str(number))
        rows = list(async_rows(sampled, row=group.row, number=number, version=group.version))
        masked = [each.masked for each in sampled.rollouts if each.masked]
        if masked:
            logger.warning(
                "group %d: %d of %d rollouts are not trained on: %s",
                number, len(masked), self._size, masked[0],
            )  # fmt: skip
        self._failed_groups = 0 if rows else self._failed_groups + 1
        if self._failed_groups >= self._most_failed:
            raise NothingToTrain(f"none of the last {self._failed_groups} groups: {masked[0]}")
        failed = sum(not each.counts for each in sampled.rollouts)
        try:
            self.metrics_queue.put_nowait(
                {
                    "rollout/failed_total": float(failed),
                    "rollout/masked_total": float(len(masked)),
                    "rollout/samples_per_rollout": len(rows) / self._size,
                }
            )
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


class _Group:
    """A group while its rollouts run."""

    def __init__(self, row: Mapping[str, Any], version: int, found: list[Outcome | None]) -> None:
        self.row = row
        self.version = version
        self._found = found

    def add(self, member: int, outcome: Outcome) -> bool:
        """Take an outcome.  Whether it was the last one."""
        self._found[member] = outcome
        return None not in self._found

    @property
    def outcomes(self) -> list[Outcome]:
        return [each for each in self._found if each is not None]


def async_rows(
    group: SampledGroup, *, row: Mapping[str, Any], number: int, version: int
) -> Iterator[Any]:
    """TRL's ``RolloutSample`` for each segment of a group that can be trained on."""
    import numpy as np
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    for rollout, advantage in zip(group.rollouts, group.advantages(), strict=True):
        result = rollout.outcome.value
        completion = result.get("completion") if isinstance(result, Mapping) else None
        for sample in rollout.trained:
            ids, mask, logprobs = _whole(sample)
            yield RolloutSample(
                prompt=_messages(row.get("prompt")),
                completion=_messages(completion),
                input_ids=np.asarray(ids, dtype=np.int64),
                completion_mask=np.asarray(mask, dtype=np.int64),
                old_log_probs=np.asarray(logprobs, dtype=np.float32),
                advantage=advantage,
                model_version=version,
                group_id=number,
                metrics={"reward": rollout.reward, "reward_std": group.std},
            )


def _whole(sample: Sample) -> tuple[list[int], list[int], list[float]]:
    """Ids, mask and log-probabilities of prompt and response."""
    before = len(sample.prompt_ids)
    return (
        [*sample.prompt_ids, *sample.response_ids],
        [*[0] * before, *sample.response_mask],
        [*[0.0] * before, *(sample.logprobs or ())],
    )


def _messages(given: Any) -> list[Any]:
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []


def _input_of(prompt: Any, rollout: str) -> Any:
    return prompt if isinstance(prompt, Mapping) else {"prompt": prompt}


def _row_of(row: Any, rollout: str) -> Any:
    return row


class _SamplingArgs(Protocol):
    temperature: float
    max_completion_length: int | None


def _sampling_of(args: _SamplingArgs) -> dict[str, Any]:
    """The sampling arguments of a trainer's configuration; those that change nothing are left
    out, since some endpoints do not know them."""
    found: dict[str, Any] = {"temperature": args.temperature}
    if args.max_completion_length is not None:
        found["max_tokens"] = args.max_completion_length
    for name, idle in [("top_p", 1.0), ("top_k", 0), ("min_p", None), ("repetition_penalty", 1.0)]:
        value = getattr(args, name, idle)
        if value != idle and value is not None:
            found[name] = value
    return found


_NONE = Outcome.failed(NeverStarted("the call was interrupted"))
