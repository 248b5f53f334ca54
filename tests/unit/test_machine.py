"""The machine in figures: its file, the fit of messages, what is luck in speeds, who meets whom."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lb_mpi.machine import (
    ALIKE,
    Machine,
    as_json,
    differ,
    even_out,
    fit_message,
    pairings,
    read_machine,
    speeds_of,
    write_machine,
)


def machine(**changes: Any) -> Machine:
    fields: dict[str, Any] = {
        "hosts": ("a", "a", "b"),
        "speeds": [2.0, 1.0, 0.5],
        "latency_s": [[0, 1e-6, 4e-5], [1e-6, 0, 5e-5], [4e-5, 5e-5, 0]],
        "s_per_byte": [[0, 1e-10, 8e-9], [1e-10, 0, 9e-9], [8e-9, 9e-9, 0]],
    }
    return Machine(**{**fields, **changes})


def test_messages_between_hosts_cost_their_mean():
    made = machine()
    assert made.size == 3
    assert made.between("a", "a") == pytest.approx((1e-6, 1e-10))
    assert made.between("a", "b") == pytest.approx((4.5e-5, 8.5e-9))
    assert made.between("b", "b") is None


def test_arrays_are_its_own():
    speeds = np.ones(3)
    made = machine(speeds=speeds)
    speeds[0] = 7.0
    assert made.speeds[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        made.speeds[0] = 7.0


@settings(deadline=None)
@given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=5), st.data())
def test_a_file_holds_every_bit(tmp_path_factory, speeds, data):
    size = len(speeds)
    costs = [
        [[0.0 if k == to else data.draw(st.floats(0, 1e300)) for to in range(size)] for k in range(size)]
        for _ in range(2)
    ]
    waits = [[data.draw(st.floats(0, 1)) for _ in speeds] for _ in range(2)]
    made = Machine(tuple(data.draw(st.text(min_size=1)) for _ in speeds), speeds, *costs, *waits)
    path = tmp_path_factory.mktemp("machine") / "m.json"
    write_machine(made, path)
    read = read_machine(path)
    assert read.hosts == made.hosts
    for name in ("speeds", "latency_s", "s_per_byte", "wait_probability", "wait_s"):
        np.testing.assert_array_equal(getattr(read, name), getattr(made, name))
    assert [file.name for file in path.parent.iterdir()] == ["m.json"]


def test_a_file_without_waits_is_of_a_machine_that_never_waits(tmp_path):
    path = tmp_path / "m.json"
    stored = {name: value for name, value in as_json(machine()).items() if not name.startswith("wait")}
    path.write_text(json.dumps(stored))
    assert read_machine(path).wait_s.tolist() == [0.0] * 3


def test_no_file_and_no_folder(tmp_path):
    with pytest.raises(OSError, match=r"m\.json"):
        read_machine(tmp_path / "m.json")
    with pytest.raises(OSError, match=r"nowhere/m.json"):
        write_machine(machine(), tmp_path / "nowhere" / "m.json")


@settings(deadline=None)
@given(st.floats(0, 1e-2), st.floats(1e-12, 1e-6))
def test_the_fit_finds_what_was_put_in(latency_s, s_per_byte):
    sizes = np.array([1, 4096, 65536, 1 << 20])
    found = fit_message(sizes, latency_s + s_per_byte * sizes)
    assert found[0] == pytest.approx(latency_s, rel=1e-5, abs=1e-5 * s_per_byte)
    assert found[1] == pytest.approx(s_per_byte, rel=1e-5)


@settings(deadline=None)
@given(st.lists(st.floats(1e-7, 1e-1), min_size=4, max_size=4))
def test_costs_are_never_negative(seconds):
    latency_s, s_per_byte = fit_message([1, 4096, 65536, 1 << 20], seconds)
    assert latency_s >= 0
    assert s_per_byte >= 0
    assert latency_s + s_per_byte > 0


def test_short_messages_count_in_the_fit():
    latency_s, s_per_byte = fit_message([1, 1 << 10, 1 << 16, 1 << 20], [1.02e-6, 2e-6, 70e-6, 1.15e-3])
    assert latency_s == pytest.approx(1e-6, rel=0.1)  # unweighted: less than 0
    assert s_per_byte == pytest.approx(1e-9, rel=0.1)


def test_rates_that_are_nearly_alike_are_equal():
    np.testing.assert_allclose(even_out(["a"] * 4, [10, 9, 8, 4]), [9, 9, 9, 4])
    np.testing.assert_allclose(even_out(["a", "b", "a", "b"], [10, 9, 8, 4]), [9, 9, 9, 4])
    np.testing.assert_allclose(even_out(["a"] * 3, [1, 2.1, 4.3]), [1, 2.1, 4.3])


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.01, 100)), min_size=1, max_size=12))
def test_rates_of_a_host_that_are_nearly_alike_become_equal(ranks):
    hosts, rates = [host for host, _ in ranks], np.array([rate for _, rate in ranks])
    even = even_out(hosts, rates)
    assert even.sum() == pytest.approx(rates.sum())
    assert np.all(even <= rates * ALIKE * (1 + 1e-12))
    assert np.all(even * ALIKE >= rates * (1 - 1e-12))
    for k, host in enumerate(hosts):
        for other in range(k):
            if hosts[other] == host:  # the order is kept
                assert (rates[k] - rates[other]) * (even[k] - even[other]) >= -1e-9


def test_hosts_may_differ_but_not_their_cores():
    assert not differ(["a", "b", "a"], [10, 1, 7])
    assert differ(["a", "b", "a"], [10, 10, 6])
    assert not differ(["a"], [10])


@pytest.mark.parametrize(("wanted", "got", "share"), [
    ([0.8, 0.4, 0.2, 0.2], [0.8, 0.4, 0.2, 0.2], 0.8),  # none waits for a core
    ([0.8, 0.4, 0.2, 0.2], [0.2, 0.2, 0.1, 0.1], 0.15),  # other processes are busy, too
    ([0.8, 0.4, 0.2, 0.2], [0.4, 0.3, 0.2, 0.2], 0.35),
    ([1.0, 1.0, 0.1], [0.7, 0.3, 0.1], 0.5),
])  # fmt: skip
def test_a_slow_rank_needs_no_more_of_a_busy_core_than_before(wanted, got, share):
    found = speeds_of(["a"] * len(wanted), [100] * len(wanted), wanted, got)
    np.testing.assert_allclose(found, 100 * np.minimum(wanted, share))


def test_luck_with_cores_is_shared_within_a_host():
    """Three ranks on two cores, one of which had a core for itself; and a rank on another host that had its own."""
    found = speeds_of(["a", "a", "b", "a"], [100] * 4, [1, 1, 1, 1], [1, 0.4, 1, 0.6])
    np.testing.assert_allclose(found, [200 / 3, 200 / 3, 100, 200 / 3])


@settings(deadline=None)
@given(st.integers(1, 40))
def test_each_two_meet_once_in_few_rounds(size):
    rounds = pairings(size)
    assert len(rounds) <= size
    for pairs in rounds:
        ranks = [rank for pair in pairs for rank in pair]
        assert len(set(ranks)) == len(ranks)
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == [(k, other) for k in range(size) for other in range(k + 1, size)]
