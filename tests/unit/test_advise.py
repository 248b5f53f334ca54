"""Advice on recorded runs: what it predicts of another way is what the simulator then takes that way."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lb_mpi.cli import advice as replay
from lb_mpi.cli.advice import (
    SEARCHES,
    Advice,
    Replayed,
    Variant,
    advise,
    core_share,
    gain,
    in_rank_order,
    predictions,
    replay_exchange,
    replay_rows,
    replay_tasks,
)
from lb_mpi.cli.report.run import Run, assemble, headline
from lb_mpi.cli.simulate.rows import Cluster, SimulatedRows, row_costs, simulate
from lb_mpi.cli.simulate.tasks import SimulatedPool, task_costs
from lb_mpi.distributing.recorded import Halos
from lb_mpi.graph import mesh
from lb_mpi.record.events import Driver, Phase, Step
from lb_mpi.record.record import Record, virtual_files
from tests.unit.records import Files, torn, written

SPEEDS = np.array([0.8, 0.4, 0.2, 0.2])


def quiet(_: str) -> None:
    pass


def run_of(records: Sequence[Record], now: float) -> Run:
    return assemble(virtual_files(records, now, ["virtual"] * len(records), "program"))


def advice_on(replay: Callable[[Run], Replayed | None], run: Run) -> Advice:
    """Advice on one driver."""
    return advise(replay(in_rank_order(run)), quiet)


def gain_of(run: Run) -> tuple[float, str]:
    return gain(predictions(run, quiet)[0])


def predicted(advice: Advice, what: str) -> float:
    (found,) = [way.predicted_s for way in advice.ways if way.what == what]
    return found


def cluster_run(scheme: str, calls: int, recorded: SimulatedRows | None = None, seed: int = 5) -> float:
    """Seconds of calls in which a warm region moves over four unequal ranks."""
    cluster = Cluster(mesh(2, 2), SPEEDS * 1e4, scheme=scheme, noise=0.05, seed=seed, recorded=recorded)
    costs = row_costs("hotspot", 4, 100, spread=1.0, period=120)
    return sum(call.seconds for call in simulate(cluster, costs, calls))


def test_rows_take_what_was_predicted():
    recorded, near, calls = SimulatedRows(4), 0.08, 40
    cluster_run("fos", calls, recorded)
    advice = advice_on(replay_rows, run_of(recorded.records, recorded.now))
    first = advice.ways[0]
    assert (first.what, advice.measured_s) == ("as recorded: fos", pytest.approx(recorded.now, rel=1e-3))
    assert first.predicted_s == pytest.approx(recorded.now, rel=0.1)
    assert predicted(advice, "direct") == pytest.approx(cluster_run("direct", calls), rel=0.08)
    costs = row_costs("hotspot", 4, 100, spread=1.0, period=120)
    alone = sum(
        max(mine.sum() / speed for mine, speed in zip(costs(k), SPEEDS * 1e4, strict=True)) for k in range(calls)
    )
    assert predicted(advice, "no balancing") == pytest.approx(alone, rel=near)
    assert alone > 1.5 * recorded.now
    assert gain_of(run_of(recorded.records, recorded.now))[0] == pytest.approx(alone / recorded.now, rel=near)
    whats = [way.what for way in advice.ways]
    assert len(set(whats)) == len(whats)
    assert {"direct", "sos"} < {*whats}


def late_run(outside_s: Sequence[float], speeds: Sequence[float] = (1.0, 0.5)) -> Run:
    """Ten calls of two ranks with rows for 0.1 s of work each; each comes late by its own time."""
    records = [Record(0.0) for _ in speeds]
    ends = np.zeros(len(speeds))
    for _ in range(10):
        began = ends + outside_s
        ends = np.full(len(speeds), max(began + 0.1 / np.array(speeds)))
        for rank, record in enumerate(records):
            how = {"scheme": "direct", "tolerance": 0.05, "when": "auto", "every": 1, "neighbours": [1 - rank]}
            record.use("map_rows", how)
            took_s, speed = 0.1 / speeds[rank], speeds[rank] / np.mean(speeds)
            record.step(Step(Driver.ROWS, began[rank], ends[rank], took_s, 10, speed, home_s=took_s))
    return run_of(records, float(ends.max()))


def test_a_run_that_was_killed_in_a_call_is_played_as_far_as_it_came():
    whole = late_run([0.0, 0.0])
    first, second = whole.ranks
    killed = second._replace(steps=second.steps[:-1], ended=False)
    advice = advice_on(replay_rows, whole._replace(ranks=[first, killed]))
    assert advice.measured_s == pytest.approx(9 * 0.2, rel=0.01)


def test_time_outside_of_calls_counts():
    with_it = advice_on(replay_rows, late_run([0.3, 0.1]))
    level, taken = with_it.ways[0].predicted_s, with_it.measured_s
    assert taken == pytest.approx(10 * 0.4, rel=0.01)
    assert predicted(with_it, "no balancing") == pytest.approx(10 * 0.4 + taken - level, rel=0.01)
    assert 10 * (0.2 + 0.2 + 0.4) / 1.5 * 0.6 < level < 10 * 0.4  # rows go to the rank that comes early
    without = advice_on(replay_rows, late_run([0.0, 0.0]))
    extra_s = without.measured_s - without.ways[0].predicted_s
    assert predicted(without, "no balancing") == pytest.approx(10 * 0.2 + extra_s, rel=0.01)


def test_rows_on_a_busy_machine_are_predicted_for_one(monkeypatch):
    monkeypatch.setattr(replay, "core_share", lambda ranks, steps: np.array([0.5, 1.0]))
    assert any("had a core for only 50% of the time" in note for note in advice_on(replay_rows, late_run([0.0, 0.0])).notes)


@pytest.mark.parametrize("with_costs", [False, True])
def test_tasks_take_what_was_predicted(with_costs):
    costs = task_costs("lognormal", 300, 5e-3, spread=1.2, seed=3)
    records = [Record(0.0) for _ in SPEEDS]
    pool = SimulatedPool([4], SPEEDS, records=records)
    took_s = pool.map(costs, costs_known=with_costs).seconds
    advice = advice_on(replay_tasks, run_of(records, took_s))
    other = SimulatedPool([4], SPEEDS).map(costs, costs_known=not with_costs)
    assert advice.ways[0].predicted_s == pytest.approx(took_s, rel=0.03)
    assert advice.measured_s == pytest.approx(took_s, rel=0.01)
    assert advice.ways[1].predicted_s == pytest.approx(other.seconds, rel=0.1)
    assert predicted(advice, "a fixed share each, by number") > 1.5 * took_s
    if not with_costs:
        by_number = max(part.sum() / speed for part, speed in zip(np.array_split(costs, 4), SPEEDS, strict=True))
        assert predicted(advice, "a fixed share each, by number") == pytest.approx(by_number, rel=0.03)
        assert gain_of(run_of(records, took_s))[0] == pytest.approx(by_number / took_s, rel=0.03)


def test_maps_before_the_last_count_by_their_work():
    records = [Record(0.0) for _ in SPEEDS]
    pool = SimulatedPool([4], SPEEDS, records=records)
    took_s = sum(pool.map(np.full(n, 2e-3)).seconds for n in (400, 200))
    advice = advice_on(replay_tasks, run_of(records, took_s))
    assert advice.ways[0].predicted_s == pytest.approx(took_s, rel=0.1)


def test_a_model_that_knows_no_speeds_is_wrong(monkeypatch):
    records = [Record(0.0) for _ in SPEEDS]
    took_s = SimulatedPool([4], SPEEDS, records=records).map(np.full(200, 5e-3)).seconds
    monkeypatch.setattr(replay, "core_share", lambda ranks, tables: 1.0 / SPEEDS)
    advice = advice_on(replay_tasks, run_of(records, took_s))
    assert advice.ways[0].predicted_s < 0.5 * took_s
    times, why = gain_of(run_of(records, took_s))
    assert advice.conclusion == f"no advice: {why}"
    assert math.isnan(times)
    assert advice.doubt == why
    head = headline(run_of(records, took_s), times, why)
    assert why in head.next_step or head.next_step.startswith(("nothing", "repeat"))


def exchanged(weights: Sequence[float], cores: Sequence[float] = (1.0, 1.0, 1.0, 1.0)) -> Run:
    """Four exchanges, with as much CPU time between them as each rank's part weighs, and so much of a core for each rank."""
    records, now = [Record(0.0) for _ in weights], 0.0
    took = np.array(weights) / SPEEDS / cores
    for rank, weight in enumerate(weights):
        halos = Halos(records[rank], cpu_share=lambda rank=rank: float(SPEEDS[rank]))
        records[rank].use("exchange", {"vertices": 10, "weight": weight, "cut": 3.0})
        for k in range(4):
            now = k * took.max()
            halos.begin(now if k == 0 else now - took.max() + took[rank], k * weight)
            halos.end(now, k * weight)
        halos.close(now + took[rank], 4 * weight)
    return run_of(records, now + took.max())


def test_a_distribution_takes_what_was_predicted():
    block = advice_on(replay_exchange, exchanged([0.25] * 4))
    static = advice_on(replay_exchange, exchanged([0.5, 0.25, 0.125, 0.125]))
    assert predicted(block, "as recorded") == pytest.approx(4 * 0.25 / 0.2)
    assert predicted(static, "equal blocks") == pytest.approx(4 * 0.25 / 0.2)
    assert gain_of(exchanged([0.5, 0.25, 0.125, 0.125]))[0] == pytest.approx(4 * 0.25 / 0.2 / (4 * 1.0 / 1.6))
    assert predicted(block, "dealt by speed (static)") == pytest.approx(4 * 1.0 / 1.6 * 1.015)


def test_a_busy_machine_stays_busy():
    """Rank 0 lost half of its core in the record, in equal blocks, where it waits most of the time."""
    busy = advice_on(replay_exchange, exchanged([0.25] * 4, [0.5, 1.0, 1.0, 1.0]))
    assert predicted(busy, "dealt by speed (static)") == pytest.approx(4 * 1.0 / 1.2 * 1.015, rel=1e-3)
    assert any("had a core for only 50% of the time" in note for note in busy.notes)
    run = exchanged([0.5, 0.25, 0.125, 0.125], [0.5, 1.0, 1.0, 1.0])
    assert predicted(advice_on(replay_exchange, run), "as recorded") == pytest.approx(4 * 0.5 / 0.4, rel=1e-3)


def test_a_busy_machine_is_noticed():
    record = Record(0.0)
    record.enter(Phase.OWN, 0.0)
    record.step(Step(Driver.TASKS, 0.0, 4.0, 1.0, 10.0))
    record.task(0, 10, 1.0)
    run = run_of([record, Record(0.0)], 4.0)
    assert core_share(run.ranks[:1], run.ranks[0].steps[None]) == pytest.approx([0.25], rel=1e-3)
    record = Record(0.0)
    record.step(Step(Driver.TASKS, 0.0, 4.0, 0.0, 0.0))
    idle = run_of([Record(0.0)], 4.0)
    assert replay_tasks(idle) is None
    with pytest.raises(ValueError, match="no tasks that took time"):
        advice_on(replay_tasks, run_of([record], 4.0))


def pool_files() -> Files:
    records = [Record(0.0) for _ in SPEEDS]
    took_s = SimulatedPool([4], SPEEDS, records=records).map(task_costs("constant", 400, 5e-3)).seconds
    return list(virtual_files(records, took_s, ["a", "a", "b", "b"], "program"))


def test_each_host_has_its_own_clock():
    run = assemble(pool_files())
    late_s = 1000.0  # by which the clock of the second host is ahead
    ranks, offsets_s = list(run.ranks), list(run.offsets_s)
    for k in (2, 3):
        one, steps = ranks[k], ranks[k].steps.copy()
        steps["began"] += late_s
        steps["ended"] += late_s
        about = one.about._replace(clock_s=one.about.clock_s + late_s)
        ranks[k] = one._replace(about=about, steps=steps, until=one.until + late_s)
        offsets_s[k] -= late_s
    found = advice_on(replay_tasks, run._replace(ranks=ranks, offsets_s=offsets_s))
    expected = advice_on(replay_tasks, run)
    assert found.measured_s == pytest.approx(expected.measured_s)
    assert found.ways[1].predicted_s == pytest.approx(expected.ways[1].predicted_s)


def test_the_report_has_the_times_with_other_settings(tmp_path, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    folder, page = written(tmp_path, pool_files()), tmp_path / "page.html"
    answer = command("report", folder, "-o", page, "--json").json
    (of,) = answer["settings"]
    assert of["driver"] == "pool"
    assert answer["not_predicted"] == []
    assert all({"what", "predicted_s", "spread_s", "change"} == set(way) for way in of["ways"])
    times = [way["predicted_s"] for way in of["ways"][1:]]
    assert times == sorted(times)
    assert f"<h2>With other settings</h2><p>pool: {of['conclusion']}</p>" in page.read_text()
    said = command("report", folder, "-o", page).out.splitlines()
    at = said.index("With other settings:")
    assert said[at + 1] == f"pool: {of['conclusion']}"
    assert said[at + 2].split() == ["pool:", f"{of['measured_s']:.3f}", "s", "predicted", "spread", "ratio", "change"]
    assert said[at + 3].startswith("as recorded: pool ")
    rows = said[at + 2 : next(k for k in range(at, len(said)) if said[k].startswith("note: "))]
    assert "\n".join(rows).count("x  ") == len(of["ways"]) - 1  # all but the recorded one have a change behind
    assert max(map(len, rows)) <= 80


def advice_of(*seconds: tuple[str, float, float], measured_s: float = 10.0, **more: Any) -> Advice:
    """Advice on a run that took `measured_s`; of each way its name, prediction and spread."""
    variants = [Variant(what, lambda one=(predicted_s, spread_s): one, "do it") for what, predicted_s, spread_s in seconds]
    return advise(Replayed("map_rows", measured_s, variants, [], **more), quiet)


def test_an_error_of_the_model_that_is_shown_as_zero_is_no_note():
    exact = Variant("as recorded", lambda: (10.0 + 1e-6, 0.0))
    assert advise(Replayed("map_rows", 10.0, [exact], []), quiet).notes == []


def test_the_conclusion_comes_first():
    best = advice_of(("as recorded", 10.0, 0.1), ("fos", 8.0, 0.1), ("no balancing", 20.0, 0.0))
    assert (best.conclusion, best.doubt) == ("fos: 1.25 times as fast as recorded (do it)", "")
    assert [way.what for way in best.ways] == ["as recorded", "fos", "no balancing"], "the fastest first"
    none = advice_of(("as recorded", 10.0, 0.1), ("fos", 9.9, 0.1), ("no balancing", 20.0, 0.0))
    assert none.conclusion.startswith("nothing to change: ")
    assert none.conclusion.endswith("without balancing it would take 2.00 times as long")
    assert not none.doubt


def test_a_model_that_is_far_off_gives_no_advice():
    far = [("as recorded", 7.9, 0.1), ("fos", 5.0, 0.1)]
    assert advice_of(*far).conclusion.startswith("no advice: the model underestimates the recorded run by 21.0%; either")
    assert [way.what for way in advice_of(*far).ways] == ["as recorded"]
    assert "the machine was busy: record it again" in advice_of(*far, core_share=np.array([0.5])).conclusion
    small = advice_of(("as recorded", 0.001, 0.0), measured_s=0.05).conclusion
    assert small.endswith("; at 0.05 s it is too short: messages and decisions dominate")
    talks = advice_of(("as recorded", 10.0, 0.0), talk_s=6.0)
    assert talks.conclusion == "no advice: exchanges take 60% of the time, whatever the distribution"


def test_a_search_and_a_rebalanced_graph_are_not_predicted(tmp_path, command):
    records = [Record(0.0), Record(0.0)]
    for record in records:
        record.step(Step(Driver.SEARCH, 0.0, 1.0, 1.0, 5.0))
    only = run_of(records, 1.0)
    assert math.isnan(gain_of(only)[0])
    line = "report", written(tmp_path, list(virtual_files(records, 1.0, ["a", "a"], "program"))), "-o", tmp_path / "page"
    assert f"note: {SEARCHES}\n" in command(*line).out
    pool = SimulatedPool([2], SPEEDS[:2], records=records)
    took_s = pool.map(np.full(200, 5e-3)).seconds
    for record in records:
        record.use("exchange", {"weight": 1.0})
        record.step(Step(Driver.EXCHANGE, took_s, took_s + 1.0, 1.0, 5.0))
        record.step(Step(Driver.REBALANCE, took_s + 1.0, took_s + 1.1, 0.0, 0.0))
    written(tmp_path, list(virtual_files(records, took_s + 1.1, ["a", "a"], "program")))
    said = command(*line, "--json").json
    assert {of["driver"] for of in said["settings"]} == {"pool"}
    assert said["not_predicted"][0] == SEARCHES
    assert said["not_predicted"][1].startswith("exchange: vertices have moved")


@pytest.mark.parametrize(("what", "words"), [
    ("torn", "records of 3 of 4 ranks: expected all of them"),
    ("one rank", "records of 1 of 4 ranks: expected all of them"),
    ("nothing in it", "contains nothing that can be replayed"),
])  # fmt: skip
def test_a_record_that_predicts_nothing_says_why(what, words):
    files = pool_files()
    if what == "torn":
        torn(files, 1)
    elif what == "one rank":
        del files[1:]
    else:
        files = list(virtual_files([Record(0.0), Record(0.0)], 1.0, ["a", "a"], "program"))
    found, (why,) = predictions(assemble(files), quiet)
    assert not found
    assert words in why
