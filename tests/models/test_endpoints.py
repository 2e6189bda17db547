"""Named endpoints, and the file that explains them."""

import os
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.endpoint import Endpoint as Served
from tests.endpoint import Reply, serve
from trio_envserve.core.errors import ConfigError
from trio_envserve.models import open_models, registry
from trio_envserve.models.endpoints import (
    FILE_VARIABLE,
    MAX_FILE_BYTES,
    Endpoint,
    parse_endpoints,
    read_endpoints,
)
from trio_envserve.models.offline import OracleModel
from trio_envserve.models.registry import check_endpoint


def test_a_file_of_endpoints():
    text = """
[qwen]
url = "http://host:8000/v1/"
model = "Qwen/Qwen3-8B"
key_env = "QWEN_KEY"
first_token_s = 30
stream = true
body = { return_token_ids = true }

["with a space"]
url = "https://api.example/v1/chat/completions"
"""
    found = parse_endpoints(text.encode(), "e.toml")
    assert found["qwen"] == Endpoint(
        url="http://host:8000/v1", model="Qwen/Qwen3-8B", key_env="QWEN_KEY", first_token_s=30,
        stream=True, body={"return_token_ids": True},
    )  # fmt: skip
    assert found["with a space"].url == "https://api.example/v1"


WRONG = {
    "not TOML": ("x = ", "e.toml is not TOML"),
    "no table": ('url = "http://x"', "url stands outside of a table"),
    "no url": ("[a]", r"\[a\] needs a url"),
    "a scheme": ('[a]\nurl = "ftp://x"', "http://HOST:PORT/v1, not 'ftp://x'"),
    "no list": ('[a]\nurls = "http://x"', "urls is a list of texts"),
    "a port": ('[a]\nurl = "http://x:99999"', "URL of a model is wrong"),
    "a password": ('[a]\nurl = "http://u:sk-1@x"', "user or password"),
    "a query": ('[a]\nurl = "http://x/?k=1"', "ends with its path"),
    "a space": ('[a]\nurl = "http://x y/v1"', "characters that none has"),
}
BESIDE_A_URL = {
    "unknown": ('modell = "m"', "'modell'; did you mean 'model'"),
    "a key": ('api_key = "sk-1"', "environment variable, and its name"),
    "a key as name": ('key_env = "sk-1"', "not the key"),
    "two of them": ('urls = ["http://y"]', "a url, or a list of urls"),
    "a word of keep": ('keep = "all"', "keep is one of tools, always, n"),
    "a field of a header": ('headers = { X-S = "{rolout}" }', "{rolout}; did you mean 'rollout'"),
    "half a field": ('headers = { X-S = "a{" }', "X-S has the unknown"),
    "a field too much": ('headers = { X-S = "a}" }', "X-S has the unknown"),
    "a key in a header": ('headers = { Authorization = "Bearer sk-1" }', "see key_env"),
    "a header of ours": ('headers = { host = "y" }', "set by this package"),
    "a header's name": ('headers = { "a b" = "y" }', "no name of a header"),
    "a header's value": ("headers = { a = 1 }", "must be printable ASCII"),
    "a type": ('retries = "3"', "a whole number, 0 or more, not '3'"),
    "a flag": ("concurrency = true", "a whole number, 1 or more, not True"),
    "zero": ("concurrency = 0", "a whole number, 1 or more, not 0"),
    "no time": ("whole_s = 0", "whole_s is a number of seconds above 0"),
    "nan": ("whole_s = nan", "whole_s is a number of seconds above 0"),
    "no body": ("body = 1", "body is a table"),
}
WRONG |= {
    name: (f'[a]\nurl = "http://x"\n{field}', told) for name, (field, told) in BESIDE_A_URL.items()
}


@pytest.mark.parametrize(("text", "told"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_says_where_and_shows_no_key(text, told):
    with pytest.raises(ConfigError, match=told) as caught:
        parse_endpoints(text.encode(), "e.toml")
    assert "e.toml" in str(caught.value)
    assert "sk-1" not in str(caught.value)


@given(st.text())
def test_any_text_is_a_file_or_is_told(text):
    with suppress(ConfigError):
        parse_endpoints(text.encode(), "e.toml")


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    assert read_endpoints() == {}
    with pytest.raises(ConfigError, match="does not exist"):
        read_endpoints("other.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_endpoints(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    for odd in (tmp_path / "fifo", "/dev/zero", "/dev/null"):
        with pytest.raises(ConfigError, match=f"the file of endpoints {odd} is no regular file"):
            read_endpoints(odd)
    (tmp_path / "endpoints.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_endpoints()
    with open(tmp_path / "endpoints.toml", "wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(ConfigError, match="larger than"):
        read_endpoints()


async def test_a_worker_finds_a_name_in_the_file_of_its_machine(tmp_path, monkeypatch):
    file = tmp_path / "models.toml"
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    monkeypatch.setenv("MY_KEY", "sk-1")
    served = Served(lambda ask: Reply("hi"))
    async with serve(served) as url:
        file.write_text(f'[mine]\nurl = "{url}"\nmodel = "m7"\nkey_env = "MY_KEY"\n')
        async with open_models() as models:
            answer = await models.get("mine").complete(
                [{"role": "user", "content": "x"}], name="", sampling_args={}
            )
            with pytest.raises(ConfigError, match="did you mean 'mine'"):
                models.get("mime")
    assert answer.text == "hi"
    assert served.asks[0].body["model"] == "m7"
    assert served.asks[0].headers["authorization"] == "Bearer sk-1"


class Point:
    def __init__(self, name, load):
        self.name = name
        self.load = load


def test_a_file_of_another_program_holds_up_no_model_that_needs_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "endpoints.toml").write_text("[[endpoint]]\nid = 'of another program'\n")
    check_endpoint("oracle")
    check_endpoint("http://127.0.0.1:8000/v1")
    with pytest.raises(ConfigError, match=r"a table \[NAME\], not a list \[\[endpoint\]\]"):
        check_endpoint("qwen")


async def test_kinds_of_models_are_found_by_entry_points(monkeypatch):
    def points(*, group):
        assert group == registry.MODEL_GROUP
        return [Point("mine", lambda: lambda endpoint: OracleModel()), Point("broken", broken)]

    def broken():
        raise SystemExit("no")

    monkeypatch.setattr("importlib.metadata.entry_points", points)
    async with open_models() as models:
        for endpoint in ("mine", "mine://with/more"):
            assert isinstance(models.get(endpoint), OracleModel)
        with pytest.raises(ConfigError, match="'broken' cannot be made: SystemExit: no"):
            models.get("broken")


async def test_without_the_extra_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("trio_envserve.models.http.find_spec", lambda name: None)
    async with open_models() as models:
        with pytest.raises(ConfigError, match=r"pip install 'trio-envserve\[models\]'"):
            models.get("http://x/v1")
    with pytest.raises(ConfigError, match="pip install"):
        registry.check_endpoint("http://x/v1")
