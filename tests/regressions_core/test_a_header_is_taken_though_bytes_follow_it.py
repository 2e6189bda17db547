"""A header frame with one more CBOR item after its array was taken for the array
alone: the decoder reads one item and does not mind the rest.  The document says that
nothing follows; two readers who cut differently would see two different messages.

Found by `trio-envserve conform`: a-malformed-header-is-answered-with-an-error.
"""

import pytest

from trio_envserve.core import messages
from trio_envserve.core.errors import ProtocolError


@pytest.mark.parametrize("rest", [b"\x00", b"\xf6", b"\xff", bytes(70_000), None])
@pytest.mark.parametrize("whole", [bytes, memoryview])
def test_nothing_follows_the_array(rest: bytes | None, whole: type):
    header = messages.encode(messages.AskStats(1))
    assert messages.decode(whole(header), most_bytes=1 << 20) == messages.AskStats(1)
    with pytest.raises(ProtocolError):
        messages.decode(whole(header + (header if rest is None else rest)), most_bytes=1 << 20)
