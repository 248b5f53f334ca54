"""The command `simulate diffusion`."""

import argparse
import json
from typing import Any

import numpy as np
import pytest

from lb_mpi.commands.diffusion import add_arguments, run, summary
from lb_mpi.diffusion.diffusion import SCHEMES, balance
from lb_mpi.graph import parse

LINE = "--graph mesh:8x8 --speeds uniform:4:16 --times uniform:5:15 --seed 0 --scheme sos --tau paper --tolerance 0.05"


def command(line: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(line.split()))


def test_the_documented_line() -> None:
    result = json.loads(json.dumps(command(LINE)))
    rng = np.random.default_rng(0)
    speeds = rng.uniform(4, 16, 64)
    times = rng.uniform(5, 15, 64)
    expected = balance(parse("mesh:8x8"), speeds * times, speeds, scheme="sos", tau="paper", tolerance=0.05)
    assert {"steps", "imbalance", "volume", "l2_volume", "seconds"} <= set(result)
    assert result["steps"] == expected.steps
    assert result["imbalance"] == expected.imbalance
    assert len(result["imbalance"]) == result["steps"] + 1
    assert result["imbalance"][-1] <= 0.05 < result["imbalance"][-2]
    assert result["volume"] == pytest.approx(np.abs(expected.flow).sum())
    assert result["l2_volume"] == pytest.approx(np.linalg.norm(expected.flow))
    assert result["seconds"] > 0
    assert command(LINE)["imbalance"] == result["imbalance"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_takes_every_tau(scheme: str) -> None:
    for tau in ("", " --tau paper", " --tau scaled", " --tau uniform"):
        result = command(f"--graph torus:3x4 --scheme {scheme} --tolerance 1e-3{tau}")
        assert result["converged"]
        assert scheme in "\n".join(summary(result))


def test_given_speeds_and_times() -> None:
    result = command("--graph mesh:1x3 --speeds 1,2,3 --times 6,0,0 --scheme direct --tolerance 1e-9")
    assert result["imbalance"] == [pytest.approx(5.0), pytest.approx(0.0, abs=1e-12)]
    assert result["volume"] == pytest.approx(5 + 3)
    assert result["l2_volume"] == pytest.approx(34**0.5)


def test_giving_up_is_said() -> None:
    result = command(LINE + " --max-steps 2")
    assert not result["converged"]
    assert result["steps"] == 2
    assert "not the 0.05" in "\n".join(summary(result))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--graph mesh:0x8", "graph = 'mesh:0x8'"),
        ("--graph blob:8", "No such file, and no such name of a graph.*'blob:8'"),
        ("--graph ring:3 --speeds 1,2", "speeds of shape"),
        ("--graph ring:3 --speeds 1,0,2", r"speeds\[1\] = 0.0"),
        ("--graph ring:3 --speeds 1,nan,2", r"speeds\[1\] = nan"),
        ("--graph ring:3 --speeds uniform:0:0", r"speeds\[0\] = 0.0"),
        ("--graph ring:3 --speeds uniform:4", "speeds = 'uniform:4': expected uniform:LOW:HIGH"),
        ("--graph ring:3 --speeds uniform:4:3", "speeds = 3.0: expected a finite number >= 4"),
        ("--graph ring:3 --speeds uniform:4:inf", "speeds = inf: expected a finite number >= 4"),
        ("--graph ring:3 --speeds normal:4:5", "speeds = 'normal:4:5'"),
        ("--graph ring:3 --times 1,-1,2", r"times\[1\] = -1.0"),
        ("--graph ring:3 --times uniform:nan:2", "times = "),
        ("--graph ring:3 --tolerance 0", "tolerance = 0.0"),
        ("--graph ring:3 --tolerance nan", "tolerance = nan"),
        ("--graph ring:3 --max-steps -1", "max_steps = -1"),
        ("--graph ring:3 --seed -1", "seed = -1"),
    ],
)
def test_odd_values(line: str, message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        command(line)
