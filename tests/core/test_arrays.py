"""Arrays in bodies, with numpy, with torch, and with neither."""

from __future__ import annotations

import array
import copy
import math
import sys
import types
from typing import Any, Literal

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trio_envserve.core import arrays, values
from trio_envserve.core.arrays import RawArray
from trio_envserve.core.values import DecodingError, EncodingError, encode

BOOL, COMPLEX64, COMPLEX128, BFLOAT16 = range(1701737985, 1701737989)

NAMES = [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip

ORDERS: tuple[Literal["<", ">"], ...] = ("<", ">")

ARRAYS = st.sampled_from(NAMES).flatmap(
    lambda name: st.sampled_from(ORDERS).flatmap(
        lambda order: hnp.arrays(
            np.dtype(name).newbyteorder(order),
            hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
        )
    )
)


def decode(body, **options) -> Any:
    return values.decode(body, **options)


def back(value, **options) -> Any:
    return decode(encode(value), **options)


def assert_same(result, expected):
    assert type(result) is np.ndarray
    assert result.dtype == expected.dtype.newbyteorder("=")
    assert result.dtype.isnative
    assert result.shape == expected.shape
    assert np.array_equal(result, expected, equal_nan=expected.dtype.kind in "fc")
    assert not result.flags.writeable
    assert result.flags.aligned


@pytest.mark.parametrize("letter", "bBhHiIlLqQfd")
def test_arrays_of_python_itself_come_back_as_numpys(letter):
    value = array.array(letter, [0, 1, 100])
    assert_same(back({"ids": value})["ids"], np.array(value))
    value.append(2)  # it may grow while its bytes are under way


def test_an_array_of_characters_is_a_sequence_like_any_other():
    letter = "w" if "w" in array.typecodes else "u"  # "u" is deprecated where there is "w"
    assert back(array.array(letter, "abc")) == ["a", "b", "c"]


def test_arrays_of_pythons_own_module_travel_with_the_smallest_byte_first(monkeypatch):
    number = array.array("H", [1])
    other = {"little": "big", "big": "little"}[sys.byteorder]
    before = bytes(arrays._lower_own(number).data)
    monkeypatch.setattr(arrays, "sys", types.SimpleNamespace(byteorder=other))
    assert bytes(arrays._lower_own(number).data) == before[::-1]


@given(ARRAYS)
def test_arrays_come_back(value):
    assert_same(back(value), value)


@given(ARRAYS)
def test_strides_are_not_kept(value):
    for view in (value.T, value[..., ::-1] if value.ndim else value, value.copy(order="F")):
        assert_same(back(view), view)


@given(ARRAYS)
def test_without_numpy_an_array_comes_back_raw_and_goes_out_again(value):
    with pytest.MonkeyPatch.context() as patch:
        body = encode(value)
        patch.setitem(sys.modules, "numpy", None)
        raw = decode(body)
        assert isinstance(raw, RawArray)
        assert raw.shape == value.shape
        assert repr(raw.tolist()) == repr(value.tolist())
        again = encode(raw)
    assert again == body
    assert_same(decode(again), value)


def test_raw_array_in_the_input_of_a_rollout_that_may_be_repeated_could_not_be_copied():
    raw = {"array": RawArray("int8", (2,), memoryview(b"12"))}
    assert copy.deepcopy(raw) == raw


def test_elements_of_bfloat16_are_numbers_and_those_of_unknown_types_a_problem():
    assert RawArray("bfloat16", (2,), b"\x80\x3f\x00\xc0").tolist() == [1.0, -2.0]
    with pytest.raises(arrays.ArrayProblem, match="float31"):
        RawArray("float31", (1,), b"1234").tolist()


@pytest.mark.parametrize("shape", [(65, 0), (10**9, 0), (8, 9, 0, 5)])
def test_g10_empty_array_of_32_bytes_was_a_thousand_million_lists(shape):
    head = b"\xd8\x28\x82" + cbor2.dumps(list(shape)) + b"\xd8\x48\x40"
    with pytest.raises(DecodingError, match="at most 64"):
        decode(head)
    with pytest.raises(EncodingError, match="at most 64"):
        encode(np.zeros(shape, "int8"))
    assert decode(encode(np.zeros((64, 0, *shape), "int8"))).shape == (64, 0, *shape)


@given(st.sampled_from(NAMES), st.integers(1, 8), st.binary(max_size=9))
def test_large_arrays_share_the_memory_of_their_body(name, rows, before):
    size = 70_000 // np.dtype(name).itemsize // rows
    value = np.arange(rows * size).astype(name).reshape(rows, size)
    body = encode({"before": before, "large": [value, 1, value[0]], "after": value})
    for data in (body, memoryview(body), memoryview(bytearray(body))):
        result = decode(data)
        assert result["before"] == before
        assert_same(result["large"][0], value)
        assert_same(result["large"][2], value[0])
        assert_same(result["after"], value)
    if name in ("bool", "int8", "uint8"):  # which are always aligned
        assert np.shares_memory(decode(body)["after"], np.frombuffer(body, np.uint8))


def test_a_body_is_the_same_in_pieces():
    value = np.arange(20_000.0).reshape(2, -1)
    tagged = cbor2.CBORTag(40, [[2, 10_000], cbor2.CBORTag(86, value.tobytes())])
    assert encode([1, value, "x"]) == cbor2.dumps([1, tagged, "x"])
    flat = cbor2.CBORTag(86, value.tobytes())
    assert encode({"a": value.reshape(-1), "b": 2}) == cbor2.dumps({"a": flat, "b": 2})


# The examples of RFC 8746, sections 2 and 3.1, and the same by hand for the rest.
VECTORS = [
    ("d84043010203", np.array([1, 2, 3], "u1")),
    ("d84143010203", None),
    ("d8414400020004", np.array([2, 4], "u2")),
    ("d84544" "02000400", np.array([2, 4], "u2")),
    ("d84248" "0000000100000002", np.array([1, 2], "u4")),
    ("d84348" "0000000000000007", np.array([7], "u8")),
    ("d84442ff00", np.array([255, 0], "u1")),
    ("d84842ff01", np.array([-1, 1], "i1")),
    ("d84944" "fffe0001", np.array([-2, 1], "i2")),
    ("d84d44" "feff0100", np.array([-2, 1], "i2")),
    ("d84a44" "fffffffe", np.array([-2], "i4")),
    ("d84b48" "fffffffffffffffe", np.array([-2], "i8")),
    ("d85042" "3c00", np.array([1], "f2")),
    ("d85442" "003c", np.array([1], "f2")),
    ("d85144" "3f800000", np.array([1], "f4")),
    ("d85544" "0000803f", np.array([1], "f4")),
    ("d85248" "3ff0000000000000", np.array([1], "f8")),
    ("d828" "82" "820203" "d841" "4c" "000200040008" "000400100100",
     np.array([[2, 4, 8], [4, 16, 256]], "u2")),
    ("d90410" "82" "820203" "d841" "4c" "000200040004" "001000080100",
     np.array([[2, 4, 8], [4, 16, 256]], "u2")),
    ("d828" "82" "80" "d84041" "05", np.array(5, "u1")),
    ("d828" "82" "820003" "d84040", np.empty((0, 3), "u1")),
    ("da656e7601" "420001", np.array([False, True])),
    ("da656e7602" "48" "0000803f" "00000040", np.array([1 + 2j], "c8")),
    ("da656e7603" "50" "000000000000f03f" "0000000000000040", np.array([1 + 2j], "c16")),
    ("da656e7604" "44" "803f" "40c0", np.array([1, -3], "f4")),
]  # fmt: skip


@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_vectors(data, expected):
    body = bytes.fromhex(data)
    if expected is None:
        with pytest.raises(DecodingError, match="whole number"):
            decode(body)
    else:
        assert_same(decode(body), expected)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (np.array([2, 4], "u2"), "d8454402000400"),
        (np.array([1.0], ">f4"), "d855440000803f"),
        (np.array(True), "d8288280da656e76014101"),
        (np.array([[1], [2]], "i1"), "d82882820201d848420102"),
    ],
)
def test_what_is_written(value, data):
    assert encode(value).hex() == data


@pytest.mark.parametrize("reader", ["numpy", "auto"])
def test_readers(reader):
    assert_same(back(np.arange(3), arrays=reader), np.arange(3))


def test_scalars_are_plain_numbers():
    scalars = [np.float32(0.5), np.int64(-3), np.bool_(True), np.complex64(1j), np.float64(0.1)]
    result = back(scalars)
    assert result == [0.5, -3, True, 1j, 0.1]
    assert [type(value) for value in result] == [float, int, bool, complex, float]
    assert back([np.str_("a"), np.bytes_(b"b")]) == ["a", b"b"]
    assert back({np.int64(1): {np.int8(2)}}) == {1: {2}}


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()]),
        np.array(["2020-01-01"], "M8[D]"),
        np.array(["text"]),
        np.array([b"text"]),
        np.zeros(2, [("a", "i4")]),
        np.ma.masked_array([1, 2], [False, True]),
        np.datetime64("2020-01-01"),
        np.void(b"abc"),
        np.zeros((1,) * 33),
        *([np.zeros(2, np.longdouble), np.longdouble(1)] if np.longdouble(0).itemsize > 8 else []),
        RawArray("float31", (1,), b"1234"),
        RawArray("float32", (2,), b"1234"),
        RawArray("int8", (2,), memoryview(b"1234")[::2]),
    ],
)
def test_other_arrays_are_refused(value):
    with pytest.raises(EncodingError) as caught:
        encode({"a": [1, value]})
    assert caught.value.path == "value.a[1]"
    assert caught.value.type_name == f"{type(value).__module__}.{type(value).__qualname__}"


def test_arrays_are_no_keys():
    with pytest.raises(EncodingError, match="cannot be a key"):
        encode({RawArray("int8", (1,), b"1"): 1})


def tagged(tag, content):
    return cbor2.CBORTag(tag, content)


@pytest.mark.parametrize(
    "value",
    [
        tagged(85, "text"),
        tagged(85, [1, 2]),
        tagged(86, bytes(7)),
        tagged(83, bytes(16)),
        tagged(87, bytes(16)),
        tagged(BOOL, b"\2"),
        tagged(BOOL, b"\0\2\1"),
        tagged(40, 5),
        tagged(40, [1]),
        tagged(40, [5, tagged(64, b"12345")]),
        tagged(40, [[5], [1, 2, 3, 4, 5]]),
        tagged(40, [[2, 3], tagged(64, b"12345")]),
        tagged(40, [[-5, -1], tagged(64, b"12345")]),
        tagged(40, [[True, 5], tagged(64, b"12345")]),
        tagged(40, [[1 << 62, 0], tagged(64, b"")]),
        tagged(40, [[1 << 61, 1 << 61, 0], tagged(64, b"")]),
        tagged(40, [[1] * 33, tagged(64, b"1")]),
        tagged(40, [[5], tagged(40, [[1, 5], tagged(64, b"12345")])]),
        tagged(1040, [[2], tagged(64, b"1")]),
        {tagged(40, ((1, 1), tagged(64, b"1"))): 1},
        {(1, tagged(64, b"1")): 1},
        {tagged(64, b"1")},
    ],
)
@pytest.mark.parametrize("numpy", [True, False])
def test_malformed_arrays_are_refused(value, numpy, monkeypatch):
    if not numpy:
        monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(DecodingError):
        decode(cbor2.dumps(value))


def test_a_library_that_is_missing_is_named(monkeypatch):
    body = encode(np.arange(3))
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    for reader in ("numpy", "torch"):
        with pytest.raises(DecodingError, match=f"{reader} is missing"):
            decode(body, arrays=reader)
    assert decode(encode([1]), arrays="torch") == [1]  # needed for arrays only


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_values_that_were_encoded_while_a_thread_imported_a_library_failed(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, types.ModuleType(library))
    assert values.decode(values.encode([{1}, b"x", 2.5])) == [{1}, b"x", 2.5]


def test_raw_arrays_by_hand(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    raw = decode(bytes.fromhex("d8414400020004"))
    assert (raw.dtype, raw.shape, bytes(raw.data)) == ("uint16", (2,), b"\2\0\4\0")
    column = tagged(1040, [[1, 2], tagged(64, b"12")])
    assert decode(cbor2.dumps(column)).shape == (1, 2)
    with pytest.raises(DecodingError, match="column-major"):
        decode(cbor2.dumps(tagged(1040, [[2, 2], tagged(64, b"1234")])))


def test_bfloat16_comes_and_goes_with_its_own_library():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    value = np.array([1, -3, math.inf], ml_dtypes.bfloat16)
    assert_same(back(value), value.astype("f4"))
    assert encode(value)[:5].hex() == "da656e7604"
    assert back(value[1]) == -3.0


# --- torch -----------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@given(ARRAYS)
def test_any_array_can_become_a_tensor(value):
    torch = pytest.importorskip("torch")
    result = back(value, arrays="torch")
    assert isinstance(result, torch.Tensor)
    assert tuple(result.shape) == value.shape
    assert np.array_equal(result.numpy(), value, equal_nan=value.dtype.kind in "fc")
    assert back([result], arrays="numpy")[0].dtype == value.dtype.newbyteorder("=")
    if result.numel():
        result.zero_()  # writable, and nobody else's


def test_tensors(torch):
    grown = torch.arange(6.0, requires_grad=True).reshape(2, 3).T
    for value in (
        grown,
        torch.tensor(5),
        torch.tensor([True, False]),
        torch.arange(4).to(torch.bfloat16),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
        torch.empty(0, 3),
        torch.arange(40_000.0).reshape(4, -1),
        torch.arange(6.0)[4:5:2],
        torch.arange(6.0)[2:],
    ):
        result = back({"a": value}, arrays="torch")["a"]
        assert result.dtype == value.dtype
        assert result.shape == value.shape
        assert torch.equal(result, value)
        assert not result.requires_grad
    assert back(torch.tensor([1.5]).to(torch.bfloat16)).dtype == np.float32


def test_a_column_major_array_becomes_a_tensor(torch):
    body = bytes.fromhex("d9041082820203d84046010203040506")
    assert decode(body, arrays="torch").tolist() == [[1, 3, 5], [2, 4, 6]]


def test_tensors_without_numpy(torch, monkeypatch):
    body = encode(torch.arange(5))
    monkeypatch.delitem(sys.modules, "numpy")
    assert encode(torch.arange(5)) == body


def test_other_tensors_are_refused(torch):
    for value in (
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
        torch.zeros((1,) * 33),
        torch.zeros(1, dtype=torch.float8_e5m2),
    ):
        with pytest.raises(EncodingError, match="tensor"):
            encode([value])
