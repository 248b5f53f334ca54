"""The driver of the search on real MPI; and a bound that ranks share, the same everywhere in the end."""

import math

import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.mpi.search import search as driver
from tests.clock import spin
from tests.mpi.sizes import COMM, LAST, several
from tests.pile import Pile

pytestmark = pytest.mark.mpi


class SlowPile(Pile):
    """Units of some tens of microseconds, so that there is time to balance."""

    def work(self, units):
        spin(20e-6)
        return super().work(1)


@pytest.mark.parametrize("route", ["ring", "random"])
@pytest.mark.every_size
def test_a_search_without_an_end_ends_when_its_time_is_over(route):
    bound = lb_mpi.Bound("max")

    def children(node):
        bound.update(node % 1000)
        return [node + 1, node + 2]

    tree = lb_mpi.TreeSearch(0, children, value=lambda node: node % 1000, merge=max)
    result = lb_mpi.search(COMM, tree, bound=bound, limit_s=0.2, route=route)
    assert result.timed_out
    assert not result.found
    assert len(set(COMM.allgather((bound.best, result.value)))) == 1
    assert "limit_s ended the search: a better result may exist" in result.report().notes
    whole = lb_mpi.search(COMM, Pile(100), limit_s=60.0)
    assert not whole.timed_out
    assert "limit_s" not in str(whole.report())
    assert len(whole.value) == 100


@pytest.mark.parametrize("route", ["ring", "random"])
@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.every_size
def test_every_item_is_done_once(balance, route):
    result = lb_mpi.search(COMM, SlowPile(3000), threshold=1.0, balance=balance, route=route, trace=balance)
    assert sorted(result.value) == list(range(1, 3001))
    assert sum(len(turn.sends) for turn in result.trace) == balance * result.ranks[COMM.rank].messages
    assert not result.found
    assert len(result.ranks) == COMM.size
    assert result.done == sum(rank.done for rank in result.ranks) == 3000
    assert 0 < result.lower_bound_s <= result.cpu_s <= 1.01 * COMM.size * result.seconds
    report = result.report()
    _, *lines, last, messages = str(report).splitlines()
    assert sum(result.messages.values()) == sum(one.messages for one in result.ranks)
    assert messages == f"messages: {', '.join(f'{n:,} {kind}' for kind, n in result.messages.items()) or 'none'}"
    assert [line.split()[:2] for line in lines] == [[str(k), f"{one.done:,}"] for k, one in enumerate(result.ranks)]
    bound = f"{result.lower_bound_s:.3f} s if each rank had always had work and a core"
    assert last.startswith(f"{result.seconds:.3f} s; {bound}")
    if balance and COMM.size > 1:
        assert result.balances > 0
    if not balance:
        assert all(rank.received <= 1 for rank in result.ranks)


@pytest.mark.parametrize(("host", "route"), [("one", "ring"), ("h{}", "random")])
def test_drafts_walk_between_hosts(host, route, monkeypatch):
    used = []
    monkeypatch.setattr(MPI, "Get_processor_name", lambda: host.format(COMM.rank))
    searcher = driver.Searcher
    monkeypatch.setattr(driver, "Searcher", lambda *given: used.append(given[3].route) or searcher(*given))
    result = lb_mpi.search(COMM, Pile(100), threshold=1.0)
    assert (len(result.value), used) == (100, ["ring" if COMM.size == 1 else route])


@several
def test_a_record_on_some_ranks_only_is_an_error_on_all(monkeypatch):
    monkeypatch.delenv("LB_MPI_RECORD", raising=False)
    if COMM.rank == 1:
        monkeypatch.setenv("LB_MPI_RECORD", "folder")
    with pytest.raises(ValueError, match=r"LB_MPI_RECORD = 'folder' on rank 1: expected None, as on ranks? 0"):
        lb_mpi.search(COMM, Pile(10), threshold=1.0)


def test_a_tree_is_searched_anew_each_time_and_other_problems_and_bounds_once():
    tree = lb_mpi.TreeSearch(1, lambda node: [2 * node, 2 * node + 1] if node < 2**9 else [])
    values = [lb_mpi.search(COMM, tree, balance=balance).value for balance in (False, True, True)]
    assert values == [2**10 - 1] * 3
    endless = lb_mpi.TreeSearch(1, lambda node: [node + 1], until=lambda n: n >= 100)
    assert [lb_mpi.search(COMM, endless, quantum=1).found for _ in range(2)] == [True, True]
    pile, bound = Pile(50), lb_mpi.Bound("min")
    assert len(lb_mpi.search(COMM, pile, bound=bound).value) == 50
    for again, name in (((pile, None), "problem"), ((Pile(50), bound), "bound")):
        given = again if COMM.rank == LAST else (Pile(50), lb_mpi.Bound("min") if again[1] else None)
        with pytest.raises(ValueError, match=f"{name} = .* has been searched with already: expected a new one"):
            lb_mpi.search(COMM, given[0], bound=given[1])


# --- a bound that ranks share --------------------------------------------------------------------------------------------


@pytest.mark.every_size
def test_a_value_comes_to_a_rank_that_works():
    bound = lb_mpi.Bound("max")
    if COMM.rank == LAST:
        bound.update(7.0)

    class Until(Pile):
        def work(self, units):
            if bound.best == 7.0:
                return super().work(units)
            return 0  # goes on until it knows the value

    assert sorted(lb_mpi.search(COMM, Until(50), bound=bound, threshold=1.0).value) == list(range(1, 51))
    assert COMM.allgather(bound.best) == [7.0] * COMM.size


@pytest.mark.parametrize("value", [math.nan, "3", None])
def test_no_value_is_an_error_of_all_that_names_the_rank(value):
    bound = lb_mpi.Bound("min")
    pile = Pile(30, bound=bound)
    if COMM.rank == 0:
        pile.work = lambda units: bound.update(value)  # the one that has work for sure
    with pytest.raises(lb_mpi.SearchError, match=r"^rank 0: ValueError: bound.update: value = .*: expected a finite"):
        lb_mpi.search(COMM, pile, bound=bound)


def test_contributions_that_have_no_sum_need_a_merge():
    tree = lb_mpi.TreeSearch(0, lambda node: [node + 1] if node < 9 else [], value=lambda node: {"node": node})
    words = r"contributions \{'node': 0\} and \{'node': 1\}: .*: expected numbers, or a function merge= that combines two"
    with pytest.raises(lb_mpi.SearchError, match=words):
        lb_mpi.search(COMM, tree, quantum=9)
