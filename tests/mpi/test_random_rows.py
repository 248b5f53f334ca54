"""Random Balancers and calls: the exact result, or an error on all ranks; then as new.

LB_MPI_RANDOM tells how many (usually 15); every rank draws the same, and its own rows.  Results have another dtype, shape
and form than the rows; ranks have none, one or many of them; and functions return their own array, the same one each time.

What is rare in random calls is forced: all rows of a rank are computed by another one, in each form of results.  Mutants of
what stores and compares results must be found then.
"""

import contextlib
import itertools
import os
import random
import warnings

import numpy as np
import pytest

import lb_mpi
from lb_mpi.balancing import decider
from lb_mpi.balancing.transfers import Plan
from lb_mpi.diffusion.setup import ROWS_SCHEMES
from lb_mpi.graph import Graph, parse
from lb_mpi.mpi.rows import computing
from lb_mpi.mpi.rows import rows as rows_module
from tests.clock import pass_time
from tests.mpi.sizes import COMM, RANK, SIZE, parameters, several
from tests.protocol.explore import for_each_seed
from tests.protocol.mutate import rejects

N = int(os.environ.get("LB_MPI_RANDOM", "15"))
pytestmark = pytest.mark.mpi


FORMS = {  # of results, row by row, for (n, 3) rows
    "rows": lambda rows: rows + rows[:, ::-1],
    "numbers": lambda rows: rows[:, 0] + rows[:, 1] + rows[:, 2],
    "flags": lambda rows: rows[:, 0] != rows[:, 1],
    "wide": lambda rows: np.stack([rows, -rows], axis=2),
    "tuple": lambda rows: (rows[:, 2] * rows[:, 1], np.asfortranarray(rows[:, :2])),
    "list": lambda rows: [np.zeros((len(rows), 0)), (rows[:, :2] == rows[:, 1:]).astype("u1")],
}


def columns(result):
    return (result,) if isinstance(result, np.ndarray) else tuple(result)


def differs(result, expected):
    """What is wrong with a result, if anything."""
    pairs = list(zip(columns(result), columns(expected), strict=False))
    if type(result) is not type(expected) or any((a.dtype, a.shape) != (b.dtype, b.shape) for a, b in pairs):
        return f"{result!r:.200} has not the form of {expected!r:.200}"
    return "" if all(a.tobytes() == b.tobytes() for a, b in pairs) else f"{result!r:.200}, not {expected!r:.200}"


class OwnArrays:
    """Copies results into arrays that are used again in each call, as programs do to save allocations."""

    def __init__(self):
        self._arrays = {}

    def __call__(self, result):
        kept = []
        for k, column in enumerate(columns(result)):
            kind = (k, column.dtype, column.shape[1:])
            if len(self._arrays.get(kind, ())) < len(column):
                self._arrays[kind] = np.empty((200, *column.shape[1:]), column.dtype)
            kept.append(self._arrays[kind][: len(column)])
            kept[-1][...] = column
        return kept[0] if isinstance(result, np.ndarray) else type(result)(kept)


def draw_graph(rng):
    pairs = [(a, b) for a in range(SIZE) for b in range(a + 1, SIZE)]
    some = sorted(rng.sample(pairs, rng.randint(0, len(pairs))))
    ends = [[a for a, _ in some], [b for _, b in some]]
    drawn = Graph.from_edges(SIZE, *np.array(ends, dtype=int))
    return rng.choice([None, parse(f"complete:{SIZE}"), parse(f"ring:{SIZE}"), drawn])


def calls(seed):
    """One Balancer with some calls; how many have failed, as they were meant to."""
    rng, mine = random.Random(seed), np.random.default_rng([seed, RANK])
    options = {
        "graph": draw_graph(rng),
        "scheme": rng.choice(["auto", *ROWS_SCHEMES]),
        "when": rng.choice(["auto", "always", "always", 0.1]),
        "every": rng.choice([1, 1, 3]),
        "emulated_speed": rng.choice([1.0, 1.0 / (1 + RANK % 3)]),
    }
    dtype, order = np.dtype(rng.choice(["f8", ">f4", "i2", "c16"])), rng.choice(["C", "F", "reversed", "broadcast"])
    few = rng.choice([False, True])
    row_s, size = rng.choice([0.0, 1e-4, 2e-3] if few else [0.0, 1e-6, 2e-5]), rng.choice([None, None, 1, 4])
    form, keep = rng.choice(list(FORMS)), rng.choice([lambda result: result, OwnArrays()])
    empty, failed = rng.choice([-1, 0, SIZE - 1]), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # graphs that are not connected
        balancer = lb_mpi.Balancer(COMM, **options)
    with balancer:
        for _ in range(rng.randint(2, 7)):
            bad, how = rng.choice([-1, -1, -1, rng.randrange(SIZE)]), rng.choice(["raises", "rows", "exits"])
            n = 0 if empty == RANK else int(mine.integers(0, 3 if few else 150))
            rows = (mine.standard_normal((n, 3)) * 100).astype(dtype)
            if order == "F":
                rows = np.asfortranarray(rows)
            elif order != "C":
                rows = rows[::-1] if order == "reversed" or not n else np.broadcast_to(rows[:1], rows.shape)
            form = rng.choice([form, form, form, *FORMS])
            begun = [0]

            def function(block, beside, bad=bad, how=how, begun=begun, form=form):
                begun[0] += 1
                pass_time(row_s * len(block))
                if bad == RANK and how == "raises":
                    raise ArithmeticError("drawn")
                if bad == RANK and how == "exits":
                    raise SystemExit(3)
                return block[1:] if bad == RANK else keep(FORMS[form]((block + beside[:, None]).astype(dtype)))

            if rng.random() < 0.4:
                choose_way(balancer, home=rng.random() < 0.5)
            beside = rows[:, 0].copy()
            expected = FORMS[form]((rows + beside[:, None]).astype(dtype))
            try:
                result = balancer.map_rows(function, rows, beside, block_rows=size)
            except (lb_mpi.BalanceError, SystemExit) as error:
                failed += 1
                assert bad >= 0, error  # noqa: PT017
                assert isinstance(error, SystemExit) == (bad == RANK and how == "exits")  # noqa: PT017
            else:
                assert not COMM.allreduce(begun[0] if bad == RANK else 0), "it has failed, and nobody knows"
                before = COMM.allreduce(len(rows))
                wrong = COMM.allgather(differs(result, expected) if before else "")
                assert not any(wrong), wrong
                if rng.random() < 0.3:
                    assert COMM.allreduce(len(balancer.migrate(rows))) == before
                continue
            assert COMM.allreduce(1) == SIZE
        ones = np.ones((5, 2))
        assert np.array_equal(balancer.map_rows(np.negative, ones), -ones)
    return failed


def choose_way(balancer, *, home):
    """On all ranks: the next call is one at home, or a full one."""
    decider = balancer._decider
    decider.quick_left = 0
    decider.ways.restart()
    decider.ways.home, decider.ways._left = home, 2**60


@pytest.mark.every_size
def test_exact_or_an_error_and_then_as_new():
    first, failed = int(os.environ.get("LB_MPI_SEED", "0")), []
    for_each_seed(range(first, first + N), lambda seed: failed.append(calls(seed)))
    assert sum(failed) or N < 15


# --- all rows of a rank are computed by another one ----------------------------------------------------------------------


def lend_all(balancer):
    """From the next call on, rank 1 computes all rows of rank 0."""
    zero, one = np.zeros(1), np.ones(1)
    balancer._knowledge.follow(Plan(np.array([0]), np.array([1]), 1e9 * one, one, one, zero))


def lent_away(scheme, n, others, *, quick=False):
    """What is wrong, on all ranks alike, when all `n` rows of rank 0 are computed elsewhere, in several forms of results.

    The other ranks have `others` rows: some, and rank 1 gets the rows of rank 0 by plan; or none, and they help rank 0, an
    emulated slow rank, which begins with a rest.  `quick`: the calls with a plan are quick ones.
    """
    rows = np.arange(3.0 * (others if RANK else n)).reshape(-1, 3) + 100 * RANK
    speed, row_s = (1.0, 0.0) if others or RANK else (0.2, 5e-3)
    balancer, wrong = lb_mpi.Balancer(COMM, scheme=scheme, when=1e9, emulated_speed=speed), ""
    n_before = 8 if others and quick else 3
    for k, form in enumerate(["rows"] * n_before + [form for form in FORMS for _ in range(2)]):
        if k == n_before and others:  # all rows have been timed
            lend_all(balancer)
        if k >= n_before or not quick:
            balancer._decider.quick_left = int(quick and k > n_before)

        def function(block, form=form):
            pass_time(row_s * len(block))
            return FORMS[form](block)

        try:
            found = differs(balancer.map_rows(function, rows), FORMS[form](rows))
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if wrong := "; ".join(f"{form}: {each}" for each in COMM.allgather(found) if each):
            break
    with contextlib.suppress(lb_mpi.Error):
        balancer.close()
    return wrong


@pytest.mark.one_mpi
@pytest.mark.parametrize("scheme", ["direct", "fos"])
@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(("n", "others"), parameters([(1, 6), (3, 6), (1, 0)], every_size=[(1, 0)]))
@several
def test_a_rank_whose_rows_were_all_lent_gets_results_of_the_form_of_the_others(scheme, n, others, quick):
    assert not lent_away(scheme, n, others, quick=quick)


def failed_quickly(scheme, *, home=False):
    """What is wrong, on all ranks alike, when the function of the last rank fails in a quick call, or in one at home.

    It fails after its first block, if there are several, so the rank has results of the usual form.
    """
    rows, bad, seen, found = np.arange(60.0).reshape(-1, 3), [False], [False], ""

    def function(block):
        if bad[0] and RANK == SIZE - 1:
            if seen[0] or len(block) == len(rows):
                raise ArithmeticError("meant")
            seen[0] = True
        pass_time(1e-3 * len(block))  # all rows are several blocks, also where others have the core
        return block + 1.0

    balancer = lb_mpi.Balancer(COMM, scheme=scheme, when=1e9)
    for _ in range(100):
        if balancer._decider.quick_left:
            break
        balancer.map_rows(function, rows)
    else:
        found = "no call is quick"
    if home:
        choose_way(balancer, home=True)
        found = found or differs(balancer.map_rows(function, rows), rows + 1.0)
    bad[0] = True
    try:
        balancer.map_rows(function, rows)
        found = "it does not fail"
    except lb_mpi.BalanceError as error:
        if "ArithmeticError: meant" not in str(error):
            found = str(error)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    bad[0], wrong = False, "; ".join(filter(None, COMM.allgather(found)))
    if not wrong:
        wrong = "; ".join(filter(None, COMM.allgather(differs(balancer.map_rows(function, rows), rows + 1.0))))
    with contextlib.suppress(lb_mpi.Error):
        balancer.close()
    return wrong


@pytest.mark.parametrize("home", [False, True])
@pytest.mark.parametrize("scheme", ["direct", "fos"])
def test_a_function_that_fails_in_a_quick_call_is_an_error_on_all_ranks_in_that_call(scheme, home):
    assert not failed_quickly(scheme, home=home)


EARLY = ("Results.receive", "self.checksum = UNKNOWN", "self.checksum = head(buffer).checksum")
CHANGES = [  # see tests/protocol/mutate.py
    # A rank that has received results says that it knows their form.
    (rows_module, [EARLY]),
    # It says so, and nobody looks whether results are missing.
    (rows_module, [EARLY, ("Results.value", "if self._n_missing:", "if False:")]),
    # The form of the last call is adopted whatever arrives.
    (rows_module, [("Results.receive", " and checksum == self._known.checksum", "")]),
    # It is adopted although nothing has arrived of this call.
    (rows_module, [("Results.__init__",
      "self.spec: Spec | None = None  # None: unknown yet\n        self.checksum = 0",
      "self.spec, self.checksum = known, 0 if known is None else known.checksum")]),
    # What arrives before the form is known is dropped.
    (rows_module, [("Results.receive", "self._early.append((index, buffer))", "pass")]),
    # It is stored in the form of the rows.
    (rows_module, [("Results.receive",
      "if self.spec is None and self._known is not None and checksum == self._known.checksum:\n"
      "            self.allocate(self._known)",
      "if self.spec is None:\n            self.allocate(self._rows.spec)")]),
    # A quick call whose results have another form ends as any other.
    (decider, [("Decider.decide", "compare, formed = most", "compare, formed = not self.quick_left and most")]),
    # A rank reports the form of the last call, though its results have another one.
    (computing, [("Computing.report", "results=checksum or (self._form.checksum if self._form is not None else 0)",
      "results=self._form.checksum if self._form is not None else checksum")]),
    # A quick call forgets a failure.
    (decider, [("Decider.decide", "if most.failed or", "if most.failed and not self.quick_left or")]),
    # So does one at home.
    (decider, [("Decider.decide", "if most.failed or", "if most.failed and not self.ways.home or")]),
    # Ranks that do not know the form need not compare.
    (decider, [("Decider.decide", "compare, formed = most.results != -most.results_low",
      "compare, formed = most.results != -most.results_low and most.results_low < 0")]),
]  # fmt: skip


MUTANTS = [[(module, *change) for change in changes] for module, changes in CHANGES]


def find_fault():
    for quick, others, scheme in itertools.product((False, True), (6, 0), ("direct", "fos")):
        assert not lent_away(scheme, 1, others, quick=quick)
    assert not failed_quickly("direct")
    assert not failed_quickly("direct", home=True)


lending = pytest.mark.skipif(SIZE == 1, reason="nothing is lent")
test_mutants_of_the_results_are_found = lending(pytest.mark.one_mpi(rejects(find_fault, MUTANTS, right=False)))
