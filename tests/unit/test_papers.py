"""The page of the papers: its one rule, the printed data, and the small tables, computed."""

import pytest

from apps.lockstep import compare_on
from apps.maze_search import read_maze
from benchmarks.papers import __main__ as papers
from benchmarks.papers import allocation, arrangement, diffusion, drafting, partition
from benchmarks.papers.arrangement import cases, rows
from benchmarks.papers.page import (
    BETTER,
    DATA,
    DIFFERS,
    EXPLAINED,
    LOST,
    MISPRINT,
    SAME,
    Evidence,
    Item,
    Printed,
    Section,
    claim,
    compare,
    write,
)
from lb_mpi.arranging import arrange as arranging
from lb_mpi.arranging.arrange import arrange

YES, NO = Evidence("shown", True), Evidence("not shown", False)


def outcomes(items: list[Item]) -> dict[str, str]:
    return {one.name: one.outcome for one in items}


@pytest.mark.parametrize(("printed", "ours", "options", "outcome"), [
    ("7.0", 7.04, {}, SAME),
    ("7", 7.4, {}, SAME),
    ("7.0", 7.4, {}, DIFFERS),
    ("0.5", 0.55, {}, SAME),  # half a unit, but for rounding in binary
    ("33", 28, {"better": "less"}, BETTER),
    ("33", 38, {"better": "less"}, DIFFERS),
    ("33", 38, {"better": "more"}, BETTER),
    ("5.4", 7.7, {"error": YES, "better": "more"}, MISPRINT),  # what can't be right can't be beaten
    ("5.4", 7.7, {"error": NO, "lost": YES}, LOST),
    ("13", 21, {"lost": NO}, DIFFERS),
    ("13", 21, {"model": YES, "lost": YES}, EXPLAINED),
    ("13", 21, {"model": NO, "lost": YES}, LOST),
    ("13", 21, {"error": YES, "model": YES}, MISPRINT),
    ("33", 28, {"better": "less", "lost": YES}, BETTER),
    ("7.0", 7.0, {"error": YES}, SAME),
    ("50", 45.0, {"drawn": [34.0, 61.0]}, SAME),
    ("50", 45.0, {"drawn": [34.0, 49.0]}, DIFFERS),
    ("50", 45.0, {"drawn": [34.0, 49.6]}, SAME),
])  # fmt: skip
def test_one_rule_makes_the_outcome(printed, ours, options, outcome):
    assert compare("it", printed, ours, **options).outcome == outcome


def test_a_reason_stands_beside_an_outcome_only_if_it_made_it():
    assert compare("it", "5.4", 7.7, error=YES).why == "shown"
    assert compare("it", "5.4", 5.4, error=YES, lost=YES).why == ""
    assert claim("it", "falls", "rises", False, error=NO, lost=YES) == Item("it", "falls", "rises", LOST, "shown")
    assert claim("it", "falls", "falls", True, lost=YES).outcome == SAME


def test_six_of_nine_printed_greedy_values_agree():
    agree = []
    for row in rows("arrangement_table1.csv"):
        case = arrangement.of_column(int(row["column"]))
        found = case.greedy(arrangement.ONE_TO_NINE)
        assert len(found) == 1
        assert found[0] == pytest.approx(arrange(case.graph, arrangement.ONE_TO_NINE, method="paper").p)
        if Printed(row["p1"]).agrees(found[0]):
            agree.append(case.name)
    assert agree == ["T2", "T3", "T4", "T7", "T6", "T8", "C8"]


def test_the_table_of_the_maze(monkeypatch):
    monkeypatch.setattr(drafting, "THRESHOLDS", (0.125,))
    opened, printed = (read_maze(DATA / name) for name in (drafting.OPENED, drafting.AS_PRINTED))
    tried = drafting.variants(opened)
    items = [
        item for ranks in drafting.PRINTED for item in drafting._rank(opened, ranks, compare_on(opened, ranks), tried)
    ]
    assert outcomes(items) == {
        "L1, steps": SAME,
        "L2, steps": SAME,
        "balances on 2": SAME,
        "S2": SAME,
        "E2": MISPRINT,
        "L4, steps": LOST,
        "balances on 4": LOST,
        "S4": LOST,
        "E4": LOST,
    }
    found = compare_on(printed, 2)
    assert (found.alone.steps, found.together.steps, found.together.balances) == (66, 46, 9)
    mazes = {drafting.OPENED: opened, drafting.AS_PRINTED: printed}
    paths = drafting._paths(mazes, {drafting.OPENED: tried, drafting.AS_PRINTED: drafting.variants(printed)})
    assert [one.outcome for one in paths] == [SAME, LOST, MISPRINT, LOST]


def test_misprinted_equations_and_the_example_of_the_lecture():
    assert {one.outcome for one in diffusion.equations()} == {MISPRINT}
    assert {one.outcome for one in diffusion.theorems_1_to_3()} == {SAME}
    some = allocation.nodes([allocation.instance(seed) for seed in range(100)])
    assert [one.outcome for one in allocation.equations(some)] == [MISPRINT, MISPRINT, MISPRINT, SAME]
    assert {one.outcome for one in partition.example()} == {SAME}


def test_a_conclusion_is_drawn_only_if_no_line_differs():
    section = Section("One", "source", "All is well.")
    section.show("Table", [compare("it", "7.0", 7.0), compare("other", "5.4", 7.7, error=YES)])
    assert section.concluded() == "**Conclusion.** All is well. Of 2 lines: 1 same, 1 error in print."
    section.show("Table", [compare("it", "7.0", 7.4)])
    assert section.concluded() == "**Conclusion.** 1 of 3 lines differ: see below."


def test_a_number_that_differs_is_counted(tmp_path, monkeypatch):
    section = Section("One", "source")
    section.show("Table", [compare("it", "7.0", 7.4)])
    assert "| it | 7.0 | print | 7.40 | **differs** |" in write([section], 1.0, False)
    monkeypatch.setattr(papers, "SECTIONS", {"one": lambda run: section})
    monkeypatch.setattr("sys.argv", ["papers", "--no-plots", "--output", str(tmp_path), "--only", "one"])
    assert papers.main() == 1


@pytest.fixture(scope="module")
def known():
    return arrangement.known_predictions()


def test_the_file_has_what_the_model_predicts(known):
    assert known.sound
    assert {name for name, _ in known.predictions} == {*cases(), "C8"}


def broken(case, patch):
    """Whether the second implementation confirms a library with a wrong p."""
    with patch.context() as now:
        now.setattr(arranging, "_ratio", lambda spectrum: 1.01 * spectrum.high / spectrum.low)
        return arrangement.confirmed(case, arrangement.ONE_TO_NINE)


def test_no_reason_counts_when_the_second_implementation_disagrees(known, monkeypatch):
    case, speeds = cases()["T7"], arrangement.ONE_TO_NINE
    row, ranking, p = rows("arrangement_table1.csv")[4], case.ranking(speeds), float(case.greedy(speeds)[0])
    assert arrangement.confirmed(case, speeds)
    assert DIFFERS not in outcomes(arrangement._column(row, case, ranking, p, known)).values()
    assert not broken(case, monkeypatch)
    monkeypatch.setattr(arrangement, "confirmed", lambda *args: False)
    assert DIFFERS in outcomes(arrangement._column(row, case, ranking, p, known)).values()


def test_a_cell_is_explained_only_by_a_prediction_that_is_the_printed_number(known):
    cell = arrangement.Cell("T9", "1", 0.0, 0.0, True, True)
    said = known.of("T9", "1")
    row = {"Pr_percent": f"{said.prediction.relative.middle:.1f}", "Pct_percent": "0.005"}

    def outcomes_of(cell, row, said):
        return [one.outcome for one in cell.items(9, row, said)]

    assert outcomes_of(cell, row, said)[0] == EXPLAINED
    assert outcomes_of(cell, {**row, "Pr_percent": "25.0"}, said)[0] == LOST
    assert outcomes_of(cell._replace(sound=False), row, said) == [DIFFERS, DIFFERS]
    assert outcomes_of(cell, row, said._replace(sound=False)) == [DIFFERS, DIFFERS]
