"""The checkpoint of a map: what comes back is what was written, or nothing."""

import datetime
import struct
import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import lb_mpi
from lb_mpi.pooling.checkpoint import DEPTH, Checkpoint, header, read, record

DIGEST = bytes(range(32))


def alike(one: Any, other: Any) -> bool:
    """True for the same types and bits; any nan is any other."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        same = one.dtype == other.dtype and one.shape == other.shape
        same = same and (not isinstance(one, np.ndarray) or 0 in one.shape or one.strides == other.strides or one.ndim < 2)
        return same and (one.tobytes() == other.tobytes() or bool(np.array_equal(one, other, equal_nan=True)))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return alike(list(one), list(other)) and alike(list(one.values()), list(other.values()))
    return repr(one) == repr(other)


keys = st.one_of(st.integers(), st.text(), st.booleans(), st.binary(), st.tuples(st.integers(), st.text()))
dtypes = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(), hnp.floating_dtypes(), hnp.complex_number_dtypes(),
    hnp.datetime64_dtypes(), hnp.timedelta64_dtypes(), hnp.unicode_string_dtypes(), hnp.byte_string_dtypes(),
)  # fmt: skip
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, min_side=0, max_side=3))
numbers = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, ())).map(lambda array: array[()])
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(1 << 200), 1 << 200), st.floats(), st.complex_numbers(),
    st.text(), st.binary(), arrays, numbers,
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=200)
@given(st.lists(values, max_size=4))
def test_results_come_back_as_written(results):
    data = header(DIGEST, 9) + record(range(len(results)), results)
    log = read(data, DIGEST, 9)
    assert (log.n_good, log.dropped) == (len(data), "")
    assert alike(log.done, dict(enumerate(results)))


@pytest.mark.parametrize("value", [
    1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), -(1 << 63) - 1, -0.0, np.float64(1.5), np.float32(1.5), np.bool_(True),
    np.str_("a"), np.str_("a\0"), np.bytes_(b"a\0"), np.ones((2, 3, 4)).transpose(1, 0, 2), np.ones((2, 3)).T[::-1],
    (1, [2, (3,)]), {(1, 2): {"a": ()}}, np.zeros((0, 3)), np.arange(6).reshape(2, 3).T,
    np.asfortranarray(np.ones((2, 3))), np.zeros(2, dtype=">i4"), np.zeros(2, dtype=[("x", "f8"), ("y", "i2")]),
])  # fmt: skip
def test_values_of_all_kinds_come_back(value):
    assert alike(read(header(DIGEST, 1) + record([0], [value]), DIGEST, 1).done[0], value)


class Mine(dict):
    pass


@pytest.mark.parametrize(("value", "name"), [
    (object(), "object"), ({1, 2}, "set"), ([(datetime.date(2000, 1, 1),)], "datetime.date"), (Mine(), "Mine"),
    ({"a": print}, "builtin_function_or_method"), (np.array([None]), "numpy.ndarray of objects"),
    (np.ma.zeros(2), "MaskedArray"), (bytearray(b"a"), "bytearray"), (range(3), "range"),
])  # fmt: skip
def test_types_that_a_checkpoint_cannot_hold_are_named(value, name):
    with pytest.raises(TypeError, match=f"^result of type .*{name}.* can't be written to a checkpoint: expected None, bool"):
        record([0], [value])


class Pair(NamedTuple):
    first: int
    second: int


@dataclass
class Point:
    x: int = 0


def pair(k: int) -> Pair:
    return Pair(k, k)


def test_classes_of_the_user_are_refused_with_what_to_return_instead():
    for value, instead in ((pair(1), r"tuple\(result\)"), (Point(), r"dataclasses\.asdict\(result\)")):
        with pytest.raises(TypeError, match=instead):
            record([0], [value])
    assert alike(read(header(DIGEST, 1) + record([0], [tuple(pair(1))]), DIGEST, 1).done[0], (1, 1))


def test_results_too_deep_or_too_many_are_refused_and_odd_texts_come_back():
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match=f"more than {DEPTH} deep"):
        record([0], [endless])
    texts = ["\ud800", np.str_("\udcff"), ("\ud800",), {"\ud800": ["\ud800"]}]
    assert alike([*read(header(DIGEST, 4) + record(range(4), texts), DIGEST, 4).done.values()], texts)
    with pytest.raises(ValueError, match="1 task numbers, 2 results"):
        record([0], [1, 2])
    deep: Any = 0
    for _ in range(DEPTH):
        deep = (deep,)
    assert alike(read(header(DIGEST, 1) + record([0], [deep]), DIGEST, 1).done[0], deep)


RESULTS = [([3], [0.5]), ([0, 1], [(1, 1 << 70), np.float64(2.5)]), ([4], [np.arange(3)])]


def small() -> tuple[bytes, list[int]]:
    """A log, and where its frames end."""
    frames = [header(DIGEST, 5), *(record(*results) for results in RESULTS)]
    return b"".join(frames), np.cumsum([len(frame) for frame in frames]).tolist()


def check_part(log: Checkpoint, n_bytes: int, ends: list[int]) -> None:
    """Whole records that are right, up to where the frames are."""
    assert log.n_good in (0, *ends)
    n_records = max(0, sum(end <= log.n_good for end in ends) - 1)
    expected = {number: value for results in RESULTS[:n_records] for number, value in zip(*results, strict=True)}
    assert alike(log.done, expected)
    if log.n_good < n_bytes:
        assert log.dropped.startswith(f"{n_bytes - log.n_good:,} bytes from ")
    else:
        assert log.dropped == ""


def test_a_checkpoint_that_is_cut_off_anywhere():
    data, ends = small()
    for n_bytes in range(len(data) + 1):
        log = read(data[:n_bytes], DIGEST, 5)
        check_part(log, n_bytes, ends)
        assert log.n_good == max([0, *(end for end in ends if end <= n_bytes)])
        again = read(data[: log.n_good] + (b"" if log.n_good else header(DIGEST, 5)) + record([2], ["x"]), DIGEST, 5)
        assert alike(again.done, log.done | {2: "x"})


def test_records_from_a_flipped_bit_on_are_dropped():
    data, ends = small()
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            if at < 8:
                with pytest.raises(ValueError, match=r"^(begins with|has version)"):
                    read(bytes(flipped), DIGEST, 5)
                continue
            log = read(bytes(flipped), DIGEST, 5)
            check_part(log, len(data), ends)
            assert log.n_good == max([0, *(end for end in ends if end <= at)])


def test_another_log_is_refused():
    data, _ = small()
    with pytest.raises(ValueError, match=r"^has 5 tasks: expected 6, as there are now"):
        read(data, DIGEST, 6)
    with pytest.raises(ValueError, match=r"^belongs to another function or to other tasks"):
        read(data, bytes(32), 5)
    with pytest.raises(ValueError, match=r"^has version 2: expected 3"):
        read(data[:6] + b"\2\0" + data[8:], DIGEST, 5)
    with pytest.raises(ValueError, match=r"^begins with b'import n'"):
        read(b"import numpy as np", DIGEST, 5)


def framed(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + struct.pack("<I", zlib.crc32(length + payload)) + payload


@settings(max_examples=200)
@given(st.one_of(st.binary(max_size=60), st.binary(max_size=20).map(lambda rest: b"\x92\x91\x00\x91" + rest)))
def test_a_record_that_means_nothing_but_has_a_fitting_crc_is_dropped(payload):
    begin = header(DIGEST, 5)
    log = read(begin + framed(payload), DIGEST, 5)
    assert log.n_good == len(begin) or set(log.done) <= set(range(5))


def test_a_tuple_without_end_is_dropped():
    payload = b"\x90"
    for _ in range(2000):
        payload = msgpack.packb(msgpack.ExtType(0, b"\x91" + payload))
    begin = header(DIGEST, 5)
    assert read(begin + framed(b"\x92\x91\x00\x91" + payload), DIGEST, 5).n_good == len(begin)


def test_numbers_that_are_no_tasks_are_dropped_and_the_first_result_counts():
    begin = header(DIGEST, 5)
    assert read(begin + record([5], [1]), DIGEST, 5).n_good == len(begin)
    assert read(begin + record([1], ["first"]) + record([1], ["second"]), DIGEST, 5).done == {1: "first"}


def test_the_results_so_far_are_read_without_function_or_mpi(tmp_path):
    file = tmp_path / "fits.log"
    whole = header(DIGEST, 9) + record([3, 4], [0.5, "x"]) + record([1], [(2,)])
    for n_bytes, done in ((None, {3: 0.5, 4: "x", 1: (2,)}), (-1, {3: 0.5, 4: "x"}), (10, {}), (0, {})):
        file.write_bytes(whole[:n_bytes])
        assert lb_mpi.read_checkpoint(file) == done
    file.write_text("no checkpoint")
    with pytest.raises(ValueError, match=r"checkpoint .*fits.log: begins with .*expected a checkpoint"):
        lb_mpi.read_checkpoint(str(file))
    with pytest.raises(TypeError, match="path = 3: expected the name"):
        lb_mpi.read_checkpoint(3)
    for wrong in ("", "fits\0log", "/dev/zero"):  # which never ends
        with pytest.raises(ValueError, match=f"path = {wrong!r}: expected".replace("\\", r"\\")):
            lb_mpi.read_checkpoint(wrong)
