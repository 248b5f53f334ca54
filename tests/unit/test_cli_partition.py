"""The command `partition`."""

from pathlib import Path

import numpy as np

from lb_mpi.partitioning.partition import partition
from lb_mpi.partitioning.quality import partition_metrics


def test_the_command_prints_and_writes_what_the_function_returns(command, tmp_path):
    output = tmp_path / "mesh.part"
    line = "partition mesh:12x12 -k 4 --targets 4,2,1,1 --imbalance 0.05 --effort fast --seed 3 --json -o"
    given = command(line, output).json
    parts = np.loadtxt(output, dtype=int)
    figures = partition_metrics("mesh:12x12", parts, 4, targets=[4, 2, 1, 1])
    expected = partition("mesh:12x12", 4, targets=[4, 2, 1, 1], imbalance=0.05, effort="fast", seed=3)
    assert (parts == expected).all()
    assert {"cut", "imbalance", "sizes", "connected"} <= set(given)
    assert (given["cut"], given["volume"], given["imbalance"]) == (figures.cut, figures.volume, figures.imbalance)
    assert given["sizes"] == np.bincount(parts, minlength=4).tolist()
    assert given["connected"] == (given["disconnected"] == []) == bool(figures.connected.all())


def test_the_parts_of_the_lecture_by_the_mean(command):
    given = command("partition 3,5/4,6/1,5,4/2,6,3/1,3/2,4 -k 2 --method spectral --threshold mean --show --json").json
    assert (given["parts"], given["cut"], given["method"]) == ([[2, 4, 6], [1, 3, 5]], 1.0, "spectral")


def test_parts_in_several_pieces_are_named(command, tmp_path):
    path = tmp_path / "pieces.graph"
    path.write_text("3 0\n\n\n\n")
    given = command("partition", path, "-k 2 --json").json
    assert (given["cut"], sorted(given["sizes"])) == (0.0, [1, 2])
    assert not given["connected"]
    assert [given["sizes"][part] for part in given["disconnected"]] == [2]
    assert "1 part is in several pieces" in command("partition", path, "-k 2").out


MACHINE = """{"format": "lb_mpi machine", "version": 1, "hosts": ["a", "b"], "speeds": [3, 1],
"latency_s": [[0, 0.5], [0.5, 0]], "s_per_byte": [[0, 0.25], [0.25, 0]]}"""


def test_a_partition_is_rated_on_a_machine(command, tmp_path):
    machine = tmp_path / "machine.json"
    machine.write_text(MACHINE)
    line = "partition mesh:2x4 -k 2 --machine", machine
    given = command(*line, "--json").json
    assert given["weights"] == [6.0, 2.0]  # by its speeds
    assert given["cost"]["computing_s"] == [2.0, 2.0]
    assert given["cost"]["lower_bound_s"] == 2.0
    assert "s, of which 6 s could not be avoided" in command(*line, "--unit-s 1").out
    assert "machine of 2 ranks: expected 3" in command(*line, "-k 3", code=2).err


def test_parts_are_written_whole_or_not_at_all(command, tmp_path):
    (tmp_path / "a.part").write_text("0\n1\n")
    (tmp_path / "link.part").symlink_to("a.part")
    line = "partition ring:4 -k 2 --effort fast -o"
    command(line, tmp_path / "link.part")
    assert (tmp_path / "link.part").is_symlink()
    assert len((tmp_path / "a.part").read_text().split()) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.part", "link.part"]
    said = command(line, "/dev/full", code=2).err
    assert said == "python -m lb_mpi partition: error: -o /dev/full: No space left on device\n"
    assert Path("/dev/full").is_char_device()


def test_the_least_time_is_an_aim(command, tmp_path):
    machine = tmp_path / "machine.json"
    machine.write_text(MACHINE)
    line = "partition mesh:6x40 -k 2 --json --machine", machine, "--aim"
    by_time, by_cut = (command(*line, aim).json["cost"]["objective_s"] for aim in ("time", "cut"))
    assert by_time <= by_cut
