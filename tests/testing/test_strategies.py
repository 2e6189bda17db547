"""Strategies draw what their docstrings promise."""

from __future__ import annotations

import pickle

from hypothesis import given, settings

from trio_envserve.testing.strategies import keys


@settings(max_examples=1_000)
@given(keys())
def test_key_of_a_mapping_equals_its_copy(key):
    # A dictionary of two NaN was drawn, and refused: "two of its keys have the same encoding".
    assert pickle.loads(pickle.dumps(key)) == key
