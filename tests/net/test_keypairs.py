"""Keys as text, and the files that have secret ones."""

from __future__ import annotations

import pytest
import zmq
from nacl.public import PrivateKey

from trio_envserve.core.errors import ConfigError
from trio_envserve.net.keypairs import (
    ClientCurve,
    KeyPair,
    key_bytes,
    key_text,
    read_secret_file,
    write_whole,
)


def test_a_pair_is_new_each_time_and_libzmq_agrees():
    one, two = KeyPair.new(), KeyPair.new()
    assert one != two
    assert zmq.curve_public(one.secret.encode()).decode() == one.public
    assert bytes(PrivateKey(one.secret_bytes).public_key) == key_bytes(one.public, "it")


def test_a_pair_does_not_show_its_secret():
    pair = KeyPair.new()
    assert pair.secret not in repr(pair)
    assert pair.secret not in repr(ClientCurve(KeyPair.new().public, pair))


@pytest.mark.parametrize(
    "text",
    ["", "x" * 39, "x" * 41, "~" * 40, "\xe9" * 40, "#" * 40, None, 7, b"x" * 40],
)
def test_text_that_is_no_key_is_refused_and_not_shown(text):
    with pytest.raises(ConfigError, match="the thing is no key: 40 characters of Z85") as caught:
        key_bytes(text, "the thing")
    assert not text or str(text) not in str(caught.value)


def test_a_pair_that_does_not_belong_together_is_refused():
    with pytest.raises(ConfigError, match="not that of the secret one"):
        KeyPair(KeyPair.new().public, KeyPair.new().secret)


def test_a_server_key_that_would_open_every_box_is_refused():
    with pytest.raises(ConfigError, match="makes every box open"):
        ClientCurve(key_text(bytes(32)), KeyPair.new())


def test_a_file_of_a_client_is_read(tmp_path):
    server, own = KeyPair.new(), KeyPair.new()
    write_whole(
        tmp_path / "it.key", f'server = "{server.public}"\nsecret = "{own.secret}"\n', 0o600
    )
    assert ClientCurve.from_file(tmp_path / "it.key") == ClientCurve(server.public, own)
    assert (tmp_path / "it.key").stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["it.key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_secret_file_that_others_can_read_is_refused(tmp_path, mode):
    write_whole(tmp_path / "it.key", 'secret = "x"', mode)
    with pytest.raises(ConfigError, match=f"others can read this secret key .mode {mode:o}"):
        read_secret_file(tmp_path / "it.key")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nothing like it [", "is not a file of keys"),
        ('secret = "x"', "it has no 'server'"),
        ('server = "x"', "it has no 'secret'"),
        ('server = "x"\nsecret = 7', "the secret key is no key"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, text, why):
    write_whole(tmp_path / "it.key", text, 0o600)
    with pytest.raises(ConfigError, match=why):
        ClientCurve.from_file(tmp_path / "it.key")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"it\.key: No such file"):
        ClientCurve.from_file(tmp_path / "it.key")
