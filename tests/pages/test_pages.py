"""Pages are put together whole, and nothing that they show can be a script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.doors.http.live import HEADERS, PAGE
from trio_envserve.pages import assemble, data_text

HTML = """<meta http-equiv="Content-Security-Policy" content="{policy}">
<style>/*style*/</style><script>/*uplot*/</script><script>/*script*/</script>"""


def elements(page: str, name: str) -> list[str]:
    return re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL)


def hashes(texts: list[str]) -> list[str]:
    found = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    return [f"'sha256-{one}'" for one in found]


def test_the_policy_allows_what_stands_in_the_page_and_nothing_else():
    page = assemble(HTML, style="p { color: red }", script="parts.put();")
    styles, scripts = elements(page.text, "style"), elements(page.text, "script")
    assert (len(styles), len(scripts)) == (1, 2)
    assert styles[0].endswith("p { color: red }")
    assert "uPlot" in scripts[0]
    assert scripts[1].endswith("parts.put();")
    rules = dict(each.split(" ", 1) for each in page.policy.split("; "))
    assert rules["style-src"].split() == hashes(styles)
    assert rules["script-src"].split() == hashes(scripts)
    assert rules["default-src"] == "'none'"
    assert f'content="{page.policy}"' in page.text
    assert '"' not in page.policy


def test_the_live_page_may_ask_its_server_and_its_policy_has_the_hashes():
    policy = dict(HEADERS)[b"content-security-policy"].decode()
    for text in elements(PAGE.decode(), "style") + elements(PAGE.decode(), "script"):
        assert hashes([text])[0] in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy


def test_no_page_names_anything_that_would_be_loaded():
    for text in (PAGE.decode(), assemble(HTML, style="", script="").text):
        assert not re.search(r"""(?:src|href)=["'](?!data:)""", text)
        assert "@import" not in text
        assert "url(" not in text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.text("<>&/!-\u2028\u2029script"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES)
def test_data_ends_no_element_and_comes_back(value: Any):
    text = data_text(value)
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == value


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_half_a_character_is_written_all_the_same(text: str):
    assert json.loads(data_text(text).encode().decode()) == text
