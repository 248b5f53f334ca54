"""Frames: truncation and corruption are noticed."""

from hypothesis import given
from hypothesis import strategies as st

from lb_mpi.files import frame, read_frame


@given(st.lists(st.binary(max_size=20), max_size=4), st.binary(max_size=9))
def test_frames_come_back_one_after_the_other(payloads, before):
    view, at = memoryview(before + b"".join(map(frame, payloads))), len(before)
    for payload in payloads:
        found, at = read_frame(view, at)
        assert found == payload
    assert read_frame(view, at) == (None, at == len(view) and at)


@given(st.binary(max_size=20), st.integers(0), st.integers(0, 7))
def test_a_truncated_or_corrupt_frame_is_none(payload, at, bit):
    whole = frame(payload)
    at %= len(whole)
    flipped = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
    assert read_frame(memoryview(flipped), 0) == (None, 0)
    assert read_frame(memoryview(whole[:at]), 0) == (None, 0)
