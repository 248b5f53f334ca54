"""Process graphs that follow the hosts."""

import numpy as np
import pytest

from lb_mpi.balancing.transfers import direct_plan
from lb_mpi.diffusion.diffusion import balance
from lb_mpi.graph import host_graph


def crossing(hosts: list[str]) -> int:
    tails, heads = host_graph(hosts).edges()
    return sum(hosts[tail] != hosts[head] for tail, head in zip(tails.tolist(), heads.tolist(), strict=True))


@pytest.mark.parametrize(("hosts", "between"), [
    (["a"], 0),
    (["a"] * 7, 0),
    (["a", "b"], 1),
    (["a", "b"] * 8, 1),
    (["a"] * 3 + ["b"] * 9 + ["c"], 3),  # of a ring
    ([f"h{rank // 16}" for rank in range(256)], 32),  # of a torus of 4 x 4
    ([f"h{rank % 7}" for rank in range(40)], 7),
])  # fmt: skip
def test_few_edges_lead_between_hosts(hosts, between):
    graph = host_graph(hosts)
    assert graph.n == len(hosts)
    assert graph.components()[0] == 1
    assert crossing(hosts) == between
    inside = {host: hosts.count(host) for host in hosts}
    assert graph.degrees.max() <= max(inside.values()).bit_length() + 4


def test_edges_between_hosts_are_shared_out_among_the_ranks():
    hosts = [f"h{rank // 16}" for rank in range(16 * 25)]
    tails, heads = host_graph(hosts).edges()
    out = np.bincount(
        [end for pair in zip(tails, heads, strict=True) if hosts[pair[0]] != hosts[pair[1]] for end in pair]
    )
    assert out.max() == 1


def test_loads_are_levelled_on_it():
    hosts = [f"h{rank // 5 % 9}" for rank in range(200)]
    rng = np.random.default_rng(1)
    found = balance(host_graph(hosts), rng.uniform(0, 9, 200), rng.uniform(1, 4, 200), scheme="cg")
    assert found.converged
    assert found.steps < 40


@pytest.mark.parametrize("hosts", [["a", "b"] * 4, ["a"] * 3 + ["b"], ["a", "b", "b", "a", "b", "b"]])
@pytest.mark.parametrize("seed", range(5))
def test_no_more_goes_between_two_hosts_than_one_of_them_has_too_much(hosts, seed):
    rng = np.random.default_rng(seed)
    loads, speeds = rng.uniform(0, 9, len(hosts)), rng.uniform(0.2, 1, len(hosts))
    plan = direct_plan(host_graph(hosts), loads, speeds)
    on = np.array(hosts)
    surplus = (loads - speeds * loads.sum() / speeds.sum())[on == "a"].sum()
    assert plan.amounts[on[plan.sources] != on[plan.destinations]].sum() == pytest.approx(abs(surplus))
