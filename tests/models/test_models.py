"""The offline models and the registry."""

import asyncio

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.hostile_code import cancelled
from trio_envserve.core.durations import Durations
from trio_envserve.core.errors import ConfigError
from trio_envserve.models import Completion, ModelError, ModelUsage, open_models, registry
from trio_envserve.models.offline import OracleModel, RandomModel

MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]


async def ask(model, reference=None, name="m", **sampling_args):
    completion = await model.complete(
        MESSAGES, name=name, sampling_args=sampling_args, reference=reference
    )
    assert isinstance(completion, Completion)
    return completion.text


async def test_log_says_once_that_rollouts_ask_the_oracle(caplog: pytest.LogCaptureFixture):
    """A trainer that forgot model= had a reward of 1.0 for each rollout, and no line said why."""
    caplog.set_level("INFO", "trio_envserve.models")
    oracle = OracleModel()
    for _ in range(2):
        await ask(oracle, "42")
    assert [each.getMessage().partition(",")[0] for each in caplog.records] == [
        "rollouts ask the model `oracle`"
    ]


async def test_oracle_answers_with_the_reference_or_says_that_there_is_none():
    assert await ask(OracleModel(), "5") == "5"
    with pytest.raises(ModelError, match="has none"):
        await ask(OracleModel())


@given(st.one_of(st.none(), st.text()), st.integers())
def test_random_is_deterministic_and_never_right(reference, seed):
    async def twice():
        first = await ask(RandomModel(), reference, seed=seed)
        second = await ask(RandomModel(), reference, seed=seed)
        assert first == second
        assert first != reference

    trio.run(twice)


async def test_random_depends_on_seed_and_name_and_keeps_the_form_of_the_reference():
    reference = "x = (1234567890 + 7)"
    answers = {
        await ask(RandomModel(), reference),
        await ask(RandomModel(), reference, seed=1),
        await ask(RandomModel(), reference, name="other"),
    }
    assert len(answers) == 3
    for answer in answers:
        assert answer.startswith("x = (")
        assert len(answer) == len(reference)


async def test_random_is_the_same_in_every_process():
    assert await ask(RandomModel(), "123456") == "459337"  # Python's hash would differ


class Client:
    def __init__(self, endpoint, on_close=None):
        self.endpoint = endpoint
        self.on_close = on_close
        self.closed = 0
        self.is_closed = False

    async def complete(self, messages, *, name, sampling_args, reference=None):
        raise NotImplementedError

    async def aclose(self):
        self.closed += 1
        if self.on_close is not None:
            await self.on_close()
        self.is_closed = True


async def test_one_client_for_each_endpoint_and_all_are_closed():
    made = []

    def factory(endpoint):
        made.append(Client(endpoint))
        return made[-1]

    async with open_models({"http": factory}) as models:
        first = models.get("http://a/v1")
        assert models.get("http://a/v1") is first
        assert models.get("http://b/v1") is not first
        assert models.get("oracle") is models.get("oracle")
    assert [(client.endpoint, client.closed) for client in made] == [
        ("http://a/v1", 1),
        ("http://b/v1", 1),
    ]
    with pytest.raises(ConfigError, match="closed"):
        models.get("oracle")


async def test_unknown_endpoints_are_refused_with_the_known_ones():
    async with open_models() as models:
        with pytest.raises(ConfigError, match=r"did you mean 'oracle'.*known: oracle, random"):
            models.get("oracel")
        with pytest.raises(ConfigError, match="unknown model endpoint 'ftp://x'"):
            models.get("ftp://x")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("localhost:8000", "http://localhost:8000/v1"),
        ("api.example.org/v1", "http://api.example.org/v1"),
        ("http:/host:8000/v1", "http://host:8000/v1"),
        ("http:/host:8000/", "http://host:8000/v1"),
        ("https:host/v1", "https://host/v1"),
    ],
)
async def test_an_address_without_its_beginning_is_told_apart_from_a_name(written, meant):
    async with open_models() as models:
        with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
            models.get(written)


async def test_the_number_of_clients_is_bounded():
    async with open_models({"http": Client}) as models:
        for i in range(registry.MAX_ENDPOINTS):
            models.get(f"http://{i}")
        with pytest.raises(ConfigError, match="endpoints"):
            models.get("http://more")


async def fail():
    raise OSError("no")


async def fail_with_what_is_no_exception():
    raise asyncio.CancelledError


async def fail_at_once():
    raise cancelled()


@pytest.mark.parametrize(
    "on_close", [fail, fail_with_what_is_no_exception, fail_at_once, trio.sleep_forever]
)
async def test_a_client_that_does_not_close_keeps_no_other_open(on_close, autojump_clock):
    clients: list[Client] = []

    def factory(endpoint):
        clients.append(Client(endpoint, None if clients else on_close))
        return clients[-1]

    async with open_models({"http": factory}) as models:
        models.get("http://a")
        models.get("http://b")
    assert [client.closed for client in clients] == [1, 1]


async def test_clients_are_closed_when_the_block_is_cancelled():
    client = Client("x", trio.lowlevel.checkpoint)
    with trio.CancelScope() as scope:
        async with open_models({"x": lambda endpoint: client}) as models:
            models.get("x")
            scope.cancel()
            await trio.sleep_forever()
    assert client.closed == 1
    assert client.is_closed  # to the end of its closing


def broken(endpoint):
    raise asyncio.CancelledError("no such library")


async def test_a_factory_that_fails_is_told_like_any_wrong_endpoint():
    """What it raised came out of the worker's own task."""
    async with open_models({"x": broken}) as models:
        with pytest.raises(ConfigError, match="CancelledError: no such library"):
            models.get("x")
        assert models.get("oracle")


# -- what is counted of model calls ---------------------------------------------------


def test_the_total_counts_what_each_rollout_does():
    took = Durations()
    total = ModelUsage(took=took)
    first, second = ModelUsage(total), ModelUsage(total)
    first.answered(Completion("a", prompt_tokens=3, completion_tokens=2, requests=2), 0.2)
    second.refused(ModelError("no"), 4.0)
    second.answered(Completion("b"), 0.2)
    assert first.to_record() == {
        "calls": 1, "failed": 0, "retries": 1, "prompt_tokens": 3, "completion_tokens": 2,
        "waited_s": 0.0,
    }  # fmt: skip
    assert total.to_record() == {
        "calls": 2, "failed": 1, "retries": 1, "prompt_tokens": 3, "completion_tokens": 2,
        "waited_s": 0.0,
    }  # fmt: skip
    assert took.to_record() == {"sum_s": 4.4, "most_s": 4.0, "0.25": 2, "5": 1}
