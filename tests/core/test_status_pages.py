"""Pages of keys, typed."""

import pytest

from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.status import KeyPage


def test_a_key_that_is_no_text_is_shown_as_an_escape():
    page = KeyPage.of(
        {
            "keys": [
                {"namespace": b"a", "key": b"\xff", "generation": 1, "state": "held", "left_s": 1}
            ],
            "next": None, "later": 1,
        }
    )  # fmt: skip
    assert [(known.key, known.left_s) for known in page.keys] == [("\\xff", 1)]


@pytest.mark.parametrize(
    "wrong",
    [
        [], {"keys": {}}, {"keys": [1]}, {"keys": [{}]}, {"next": "x"},
        {"keys": [{"generation": 1, "state": "held", "key": "text"}]},
        {"keys": [{"generation": True, "state": "held"}]},
    ],
)  # fmt: skip
def test_what_is_no_page_of_keys_is_said(wrong):
    with pytest.raises(ProtocolError):
        KeyPage.of(wrong)
