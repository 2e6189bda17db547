"""A client's name that is no text, or text that has no UTF-8, was found out when the
hello was encoded: by an exception in the middle of the connection's own task.
"""

from typing import Any

import pytest

from trio_envserve import ConfigError, open_client
from trio_envserve.net import MemoryNetwork


@pytest.mark.parametrize("name", ["\ud800", 5, b"bytes", ["list"]])
async def test_it_is_refused_when_the_client_is_opened(name: Any):
    opened = False
    with pytest.raises(ConfigError, match="name must be text"):
        async with open_client("memory:nobody", name=name, network=MemoryNetwork()):
            opened = True
    assert not opened


@pytest.mark.parametrize("name", ["", "trainer", "Übung 7"])
async def test_any_text_is_a_name(name: str):
    async with open_client("memory:nobody", name=name, network=MemoryNetwork()):
        pass
