from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core.errors import ConfigError
from trio_envserve.net import Address, is_loopback, parse_address, parse_peer_address
from trio_envserve.net.address import parse_transport


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://127.0.0.1:5555", Address("tcp", host="127.0.0.1", port=5555)),
        ("tcp://some-host.example:1", Address("tcp", host="some-host.example", port=1)),
        ("tcp://localhost:65535", Address("tcp", host="localhost", port=65535)),
        ("tcp://[::1]:5555", Address("tcp", host="::1", port=5555)),
        ("tcp://*:5555", Address("tcp", host="*", port=5555)),
        ("tcp://*:*", Address("tcp", host="*", port=0)),
        ("ipc:///run/x.sock", Address("ipc", path="/run/x.sock")),
        ("ipc:///" + "x" * 102, Address("ipc", path="/" + "x" * 102)),
        ("memory:name", Address("memory", path="name")),
        ("memory:*", Address("memory", path="*")),
    ],
)
def test_addresses(text: str, address: Address):
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("127.0.0.1:5555", r"did you mean tcp://127\.0\.0\.1:5555\?"),
        ("localhost:*", r"did you mean tcp://localhost:\*\?"),
        ("/run/x.sock", r"did you mean ipc:///run/x\.sock\?"),
        ("", "tcp://127.0.0.1:5555 or ipc:///path expected"),
        ("http://localhost:80", "expected"),
        (None, "expected"),
        ("tcp://localhost", "tcp://host:port expected"),
        ("tcp://:5555", "tcp://host:port expected"),
        ("tcp://localhost:", "port must be"),
        ("tcp://localhost:1x", "port must be"),  # libzmq takes it for port 1
        ("tcp://localhost:65536", "port must be"),
        ("tcp://localhost:-1", "port must be"),
        ("tcp://localhost:٣", "port must be"),
        ("tcp://localhost:" + "1" * 5000, "port must be"),  # it was a ValueError
        ("tcp://::1:5555", "in brackets"),
        ("tcp://[::1:5555", "in brackets"),
        ("tcp://::1]:5555", "in brackets"),
        ("tcp://[localhost]:5555", "not an IPv6 address"),
        ("tcp://a b:5555", "not a host name"),
        ("tcp://eth0;other:5555", "not a host name"),
        ("ipc://relative", "absolute"),
        ("ipc://", "absolute"),
        ("ipc://*", "absolute"),
        ("ipc:///folder/", "absolute"),
        ("ipc:///nul\0byte", "absolute"),
        ("ipc:///" + "x" * 103, "104 bytes"),
        ("ipc:///" + "é" * 60, "121 bytes"),
        ("ipc:///\udcff", "UTF-8"),
        ("memory:", "name is missing"),
    ],
)
def test_a_wrong_address_is_explained(text: str, says: str):
    with pytest.raises(ConfigError, match=says) as caught:
        parse_address(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["", "localhost", "http://localhost:80", "a b:80", "localhost:x"])
def test_a_suggestion_is_left_out_where_it_was_hardly_meant(text: str):
    with pytest.raises(ConfigError) as caught:
        parse_address(text)
    assert str(caught.value).endswith(f"expected, got {text!r}")


@pytest.mark.parametrize(
    "text", ["tcp://127.0.0.1:1", "tcp://[::1]:5555", "ipc:///run/x.sock", "memory:name"]
)
def test_a_whole_address_can_be_connected_to(text: str):
    assert str(parse_peer_address(text)) == text


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:1", "tcp://*:*", "ipc:///run/x.sock"])
def test_real_sockets_have_all_addresses_but_those_in_memory(text: str):
    assert str(parse_transport(text)) == text
    with pytest.raises(ConfigError, match=r"memory:name: .* belong to a MemoryNetwork"):
        parse_transport("memory:name")


@pytest.mark.parametrize("text", ["tcp://*:5555", "tcp://127.0.0.1:0", "tcp://*:0", "memory:*"])
def test_an_address_left_open_cannot_be_connected_to(text: str):
    with pytest.raises(ConfigError, match="cannot connect"):
        parse_peer_address(text)


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.9.9.9:1", True),
        ("tcp://[::1]:1", True),
        ("tcp://localhost:1", True),
        ("tcp://LOCALHOST.:1", True),
        ("ipc:///x", True),
        ("memory:x", True),
        ("tcp://*:1", False),
        ("tcp://0.0.0.0:1", False),
        ("tcp://10.0.0.1:1", False),
        ("tcp://localhost.example:1", False),
        ("tcp://[::]:1", False),
    ],
)
def test_loopback(text: str, loopback: bool):
    assert is_loopback(text) is loopback


@given(
    st.one_of(
        st.text(),
        st.sampled_from(["tcp://", "ipc:///", "memory:"]).flatmap(
            lambda scheme: st.text().map(lambda rest: scheme + rest)
        ),
    )
)
def test_anything_is_an_address_or_a_config_error(text: str):
    try:
        address = parse_address(text)
    except ConfigError:
        return
    assert parse_address(str(address)) == address
