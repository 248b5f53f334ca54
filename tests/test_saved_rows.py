"""Rows in a save, without MPI: whoever has written them, any part of them can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lb_mpi.saving.folder import Folder
from lb_mpi.saving.rows import (
    check_arrays,
    check_options,
    compare_options,
    describe_rows,
    n_rows,
    read_rows,
    shares,
    write_rows,
)
from tests.memory_disk import MemoryDisk

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
def test_any_rows_can_be_read_whoever_has_written_them(
    counts: list[int], dtype: np.dtype[Any], trailing: tuple[int, ...], data: st.DataObject
) -> None:
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
    folder = Folder(Path("/saves"), "rows", MemoryDisk())
    folder.begin(1)
    ends = np.cumsum(counts)
    arrays = [
        check_arrays({"b": whole[e - n : e], "a": np.arange(e - n, e)}) for n, e in zip(counts, ends, strict=True)
    ]
    parts = [part for rank, own in enumerate(arrays) for part in write_rows(folder, 1, rank, own)]
    folder.commit(1, describe_rows(counts, arrays[0], {}), parts)
    saved = folder.saves().whole[0]
    assert n_rows(saved) == n
    found = read_rows(folder, saved, first, end)
    assert found["a"].tolist() == list(range(first, end))
    assert (found["b"].dtype, found["b"].shape) == (whole.dtype, (end - first, *trailing))
    assert found["b"].tobytes() == whole[first:end].tobytes()


def test_shares_are_equal() -> None:
    assert shares(7, 3) == [3, 2, 2]
    assert shares(2, 3) == [1, 1, 0]
    assert shares(0, 2) == [0, 0]


def test_options_are_compared_by_name_and_value() -> None:
    folder = Folder(Path("/saves"), "rows", MemoryDisk())
    folder.begin(1)
    folder.commit(1, describe_rows([0], {}, check_options({"shape": (4, 5), "name": "ü"})), [])
    saved = folder.saves().whole[0]
    compare_options(saved, check_options({"name": "ü", "shape": [4, 5]}), folder.path)
    with pytest.raises(ValueError, match=r"shape = \[5, 4\]: expected \[4, 5\], as in what is saved in /saves"):
        compare_options(saved, check_options({"name": "ü", "shape": (5, 4)}), folder.path)
    for wrong in ({"a": {1, 2}}, {"a": 1 << 70}, {3: 4}):
        with pytest.raises(TypeError, match=r"options = .*: expected names with numbers, text and lists"):
            check_options(wrong)
