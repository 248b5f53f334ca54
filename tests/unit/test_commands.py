"""The commands `allocate`, `balance` and `partition`: their numbers are those of the functions; pictures and files."""

from pathlib import Path

import numpy as np
import pytest

import lb_mpi


def test_allocate_knows_waits_and_the_method_of_the_paper(command):
    line = "--tasks 14 --time 0.1,0.2,0.4 --edge-probability 0.5 --exchange 0.05 --wait 0.1,0.2,0.1 --wait-probability 0.5"
    how = {"edge_probability": 0.5, "exchange": 0.05, "wait": [0.1, 0.2, 0.1], "wait_probability": 0.5}
    for method in ("exact", "paper"):
        given = command("allocate", line, "--method", method, "--json").json
        expected = lb_mpi.allocate(14, [0.1, 0.2, 0.4], method=method, **how)
        assert (given["counts"], given["makespan"]) == (expected.counts.tolist(), expected.makespan)
        assert (given["method"], given["lower_bound"]) == (method, expected.lower_bound)


@pytest.mark.parametrize("scheme", ["fos", "cg", "dimension_exchange", "auto"])
def test_the_answer_is_that_of_balance(command, scheme):
    found = command("balance ring:4 --speeds 2,1,1,4 --times 10,4,6,1 --tolerance 1e-6 --json --scheme", scheme).json
    speeds, loads = [2.0, 1.0, 1.0, 4.0], [20.0, 4.0, 6.0, 4.0]
    whole = lb_mpi.balance("ring:4", loads, speeds, scheme=scheme, tolerance=1e-6)
    assert (found["steps"], found["imbalance"], found["converged"]) == (whole.steps, whole.imbalance, True)
    assert [abs(amount) for amount in whole.flow] == [amount for _, _, amount in found["flow"]]
    assert found["times_after"] == [load / speed for load, speed in zip(whole.loads, speeds, strict=True)]
    assert (found["speeds"], found["times"]) == (speeds, [10.0, 4.0, 6.0, 1.0])


MESH = """
+------+         +------+
|  4.00|         |  0.00|
|  1.00|  1.5 >  |  1.00|
|s 1.00|         |s 1.00|
+------+         +------+
 1.5 v            0.5 v
+------+         +------+
|  0.00|         |  0.00|
|  1.00|  0.5 >  |  1.00|
|s 1.00|         |s 1.00|
"""


def test_a_small_mesh_is_drawn_as_in_figure_2(command):
    out, err = command("balance mesh:2x2 --speeds 1,1,1,1 --times 4,0,0,0 --tolerance 1e-9")
    assert err == ""
    assert MESH in out
    assert "   0  300.000%  ########################################" in out
    assert "the diagonal of M is positive (at least 0.3333), the graph is bipartite" in out
    assert "least eigenvalue of M -0.3333, largest but 1 in absolute value 0.3333: fos converges" in out


def test_long_lists_are_shortened(command):
    out = command("balance ring:50 --tolerance 0.001").out.splitlines()
    assert "... and 30 more" in out
    assert len(out) < 52
    assert command("balance ring:50 --steps 3").out.count("not converged") == 1


def test_components_are_named_once_and_balanced_apart(command):
    with pytest.warns(UserWarning, match="2 components") as said:
        found = command("balance 2/1/4/3 --speeds 1,1,1,1 --times 4,0,2,0 --json")
    assert (len(said), found.err) == (1, "")
    assert found.json["times_after"] == pytest.approx([2.0, 2.0, 1.0, 1.0], rel=0.05)


def test_partition_prints_and_writes_what_the_function_returns(command, tmp_path):
    output = tmp_path / "mesh.part"
    line = "partition mesh:12x12 -k 4 --targets 4,2,1,1 --imbalance 0.05 --effort fast --seed 3 --show --json -o"
    given = command(line, output).json
    parts = np.loadtxt(output, dtype=int)
    figures = lb_mpi.partition_metrics("mesh:12x12", parts, 4, targets=[4, 2, 1, 1])
    assert (parts == lb_mpi.partition("mesh:12x12", 4, targets=[4, 2, 1, 1], imbalance=0.05, effort="fast", seed=3)).all()
    assert (given["cut"], given["volume"], given["imbalance"]) == (figures.cut, figures.volume, figures.imbalance)
    assert given["sizes"] == [len(part) for part in given["parts"]] == np.bincount(parts, minlength=4).tolist()
    assert given["parts"][3] == (1 + np.flatnonzero(parts == 3)).tolist()
    assert given["connected"] == (given["disconnected"] == []) == bool(figures.connected.all())


def test_the_threshold_of_a_spectral_partition_is_an_option(command):
    line = "partition 2,3,4,5/1/1/1/1,6/5 -k 2 --method spectral --json --threshold"  # a star, and a tail
    assert [sorted(command(line, way).json["sizes"]) for way in ("median", "mean")] == [[3, 3], [2, 4]]


def test_parts_in_several_pieces_are_named(command, tmp_path):
    path = tmp_path / "pieces.graph"
    path.write_text("3 0\n\n\n\n")
    given = command("partition", path, "-k 2 --json").json
    assert (given["cut"], sorted(given["sizes"])) == (0.0, [1, 2])
    assert not given["connected"]
    assert [given["sizes"][part] for part in given["disconnected"]] == [2]
    assert "1 part is in several pieces" in command("partition", path, "-k 2").out


def test_a_partition_is_rated_on_a_machine_whose_least_time_is_an_aim(command, tmp_path):
    machine = tmp_path / "machine.json"
    machine.write_text("""{"format": "lb_mpi machine", "version": 1, "hosts": ["a", "b"], "speeds": [3, 1],
        "latency_s": [[0, 0.5], [0.5, 0]], "s_per_byte": [[0, 0.25], [0.25, 0]]}""")
    line = "partition mesh:2x4 -k 2 --machine", machine
    given, by_time = command(*line, "--json").json, command(*line, "--json --aim time").json
    assert given["weights"] == [6.0, 2.0]  # by its speeds
    assert given["cost"]["computing_s"] == [2.0, 2.0]
    assert given["cost"]["lower_bound_s"] == 2.0
    assert by_time["cost"]["objective_s"] < given["cost"]["objective_s"]
    assert "s, of which 6 s could not be avoided" in command(*line, "--unit-s 1").out
    assert "machine of 2 ranks: expected 3" in command(*line, "-k 3", code=2).err


def test_a_full_disk_is_named(command):
    said = command("partition ring:4 -k 2 --effort fast -o /dev/full", code=2).err
    assert said == "python -m lb_mpi partition: error: -o /dev/full: No space left on device\n"
    assert Path("/dev/full").is_char_device()
