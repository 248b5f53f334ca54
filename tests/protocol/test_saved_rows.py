"""Rows in a save, without MPI: whoever has written them, any part of them can be read."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lb_mpi.columns import orders_of
from lb_mpi.errors import SaveError
from lb_mpi.saving import rows as real
from lb_mpi.saving.folder import Folder, Saved
from lb_mpi.saving.rows import check_arrays, check_options, compare_options, describe_rows, differ, shares
from tests.protocol.memory_disk import MemoryDisk
from tests.protocol.mutate import rejects
from tests.protocol.saving_mutants import ROW_MUTANTS

dtypes = st.one_of(
    hnp.scalar_dtypes(), hnp.unicode_string_dtypes(), hnp.byte_string_dtypes(), hnp.array_dtypes(max_size=3)
)


@settings(max_examples=50)
@given(
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    dtype=dtypes,
    trailing=hnp.array_shapes(min_dims=0, min_side=0, max_dims=2, max_side=3),
    data=st.data(),
)
def test_any_rows_can_be_read_whoever_has_written_them(counts, dtype, trailing, data):
    n = sum(counts)
    try:
        str(dtype).encode("latin-1")
    except UnicodeError:
        with pytest.raises(TypeError, match=r"a has dtype .*: expected one for a \.npy file"):
            check_arrays({"a": np.zeros(n, dtype)})
        return
    whole = data.draw(hnp.arrays(dtype, (n, *trailing)))
    first = data.draw(st.integers(0, n))
    end = data.draw(st.integers(first, n))
    folder, saved = written(real, counts, whole)
    check_read(real, folder, saved, whole, first, end)


def written(rows: Any, counts: list[int], whole: np.ndarray[Any, Any]) -> tuple[Folder, Saved]:
    """A save of `whole`, and of the rows' numbers, by ranks that have so many rows."""
    folder = Folder(Path("/saves"), "rows", MemoryDisk())
    folder.begin(1)
    ends = np.cumsum(counts)
    arrays = [
        rows.check_arrays({"b": whole[e - n : e], "a": np.arange(e - n, e)}) for n, e in zip(counts, ends, strict=True)
    ]
    parts = [part for rank, own in enumerate(arrays) for part in rows.write_rows(folder, 1, rank, own)]
    folder.commit(1, rows.describe_rows(counts, arrays[0], orders_of([*arrays[0].values()]), {}), parts)
    return folder, folder.saves().whole[0]


def check_read(rows: Any, folder: Folder, saved: Saved, whole: np.ndarray[Any, Any], first: int, end: int) -> None:
    assert rows.n_rows(saved) == len(whole)
    found = rows.read_rows(folder, saved, first, end)
    assert found["a"].tolist() == list(range(first, end))
    assert (found["b"].dtype, found["b"].shape) == (whole.dtype, (end - first, *whole.shape[1:]))
    assert found["b"].tobytes() == whole[first:end].tobytes()


def check_all(rows: Any) -> None:
    """Any rows of a few small arrays, each file as numpy alone reads it, and what is refused."""
    for counts in ([3], [2, 0, 3], [0, 1, 4, 1]):
        n = sum(counts)
        for whole in (np.arange(n * 3.0).reshape(n, 3)[:, ::-1], np.array([f"row {k}" for k in range(n)])):
            folder, saved = written(rows, counts, whole)
            for first in range(n + 1):
                for end in range(first, n + 1):
                    check_read(rows, folder, saved, whole, first, end)
            files = sorted(name for name in saved.parts if name.startswith("b-"))
            alone = [np.load(io.BytesIO(folder.read(saved, name)), allow_pickle=False) for name in files]
            assert np.concatenate(alone).tolist() == whole.tolist()
            dtype, saved.meta["arrays"]["b"] = saved.meta["arrays"]["b"], b"\x93NUMPY"
            with pytest.raises(SaveError, match="saves: save 1 has no dtype for b"):
                rows.read_rows(folder, saved, 0, n)
            saved.meta["arrays"]["b"] = dtype
            saved.meta["options"]["n"] = 1
            with pytest.raises(ValueError, match="n = 2: expected 1"):
                rows.compare_options(saved, {"n": 2}, "x")
            with pytest.raises(ValueError, match="more = 2: expected none"):
                rows.compare_options(saved, {"n": 1, "more": 2}, "x")
            with pytest.raises(ValueError, match="n = not given: expected 1"):
                rows.compare_options(saved, {}, "x")
    for wrong in ({"a": np.zeros(2), "b": np.zeros(3)}, {"../a": np.zeros(2)}, {"a": np.zeros(())}, {}):
        with pytest.raises(ValueError, match="expected"):
            rows.check_arrays(wrong)
    out_of_order = np.zeros(2, [("x", "f8"), ("y", "i4"), ("z", "f4")])[["z", "x"]]
    for refused, says in (
        (np.array([{}]), "a of dtype object: expected"),
        (np.ma.masked_invalid([1.0, np.nan]), r"a of type MaskedArray: expected a numpy array, such as a\.filled"),
        (np.zeros(2).view(np.recarray), r"a of type recarray: expected a numpy array, such as np\.asarray\(a\)"),
        (out_of_order, r"a has dtype .*'z'.*: expected one for a \.npy file \(.*out-of-order"),
        (np.zeros(2, np.dtype((np.record, [("x", "f8")]))), r"a has dtype .*record.*: expected one .*\(it would become"),
    ):
        with pytest.raises(TypeError, match=says):
            rows.check_arrays({"a": refused})


mutants = [(real, *one) for one in ROW_MUTANTS]
test_known_wrong_variants_are_caught = rejects(lambda: check_all(real), mutants, Exception)  # whatever it breaks


def test_shares_are_equal():
    assert shares(7, 3) == [3, 2, 2]
    assert shares(2, 3) == [1, 1, 0]
    assert shares(0, 2) == [0, 0]


def test_options_are_compared_by_name_and_value():
    folder = Folder(Path("/saves"), "rows", MemoryDisk())
    folder.begin(1)
    folder.commit(1, describe_rows([0], {}, {}, check_options({"shape": (4, 5), "name": "ü"})), [])
    saved = folder.saves().whole[0]
    compare_options(saved, check_options({"name": "ü", "shape": [4, 5]}), folder.path)
    with pytest.raises(ValueError, match=r"shape = \[5, 4\]: expected \[4, 5\], as in what is saved in /saves"):
        compare_options(saved, check_options({"name": "ü", "shape": (5, 4)}), folder.path)
    one: Any = {"x": 1, "y": [np.nan, {"a": True, "b": 0.0}]}
    other: Any = {"y": (np.float32("nan"), {"b": -0.0, "a": np.int8(1)}), "x": 1.0}
    assert not differ(check_options(one), check_options(other))
    assert differ(check_options({"x": 1.5}), check_options({"x": np.nan}))
    for wrong in ({"a": {1, 2}}, {"a": 1 << 70}, {3: 4}, {"a": np.zeros(2)}):
        with pytest.raises(TypeError, match=r"options = .*: expected names with numbers, text and lists"):
            check_options(wrong)
