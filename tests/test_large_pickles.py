"""Pickles whose large buffers are in a file beside them."""

from __future__ import annotations

import os
import pickle
import tempfile
from typing import Any

import numpy
import pytest

from trio_envserve.large_pickles import ALIGNED_BYTES, LARGE_BYTES, dump, mapped, write


def returned(value: Any, *, beside: bool = True) -> tuple[Any, int]:
    """The value after its way through a file, and how many bytes are in that."""
    with tempfile.TemporaryFile() as file:
        pickled, buffers = dump(value, beside=beside)
        spans = write(file.fileno(), ALIGNED_BYTES, buffers)
        size = os.fstat(file.fileno()).st_size
        return pickle.loads(pickled, buffers=mapped(file.fileno(), spans)), size


def test_large_arrays_travel_beside_the_pickle_and_small_ones_in_it():
    large, larger = numpy.arange(LARGE_BYTES // 8), numpy.arange(LARGE_BYTES + 1, dtype="uint8")
    small = numpy.arange(7.0)
    found, size_bytes = returned({"large": large, "more": [larger, small], "text": "x" * 100_000})
    assert (found["large"] == large).all()
    assert (found["more"][0] == larger).all()
    assert (found["more"][1] == small).all()
    assert size_bytes == 2 * ALIGNED_BYTES + LARGE_BYTES + LARGE_BYTES + 1 - ALIGNED_BYTES
    found["large"][0] = 7  # it may be written to


@pytest.mark.parametrize(
    ("value", "beside"),
    [("text", True), (numpy.zeros(3), True), (numpy.zeros(LARGE_BYTES), False)],
)
def test_value_without_large_buffers_leaves_the_file_empty(value: Any, beside: bool):
    found, size_bytes = returned(value, beside=beside)
    assert numpy.array_equal(found, value)
    assert size_bytes == 0


def test_array_that_is_not_contiguous_is_the_same_afterwards():
    array = numpy.arange(4 * LARGE_BYTES).reshape(2, -1)[:, ::3]
    found, _ = returned(array)
    assert (found == array).all()
