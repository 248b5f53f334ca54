"""The command `balance`: its numbers are those of the function; the figure, the curve and the mistakes."""

import pytest

import lb_mpi


@pytest.mark.parametrize("scheme", ["fos", "cg", "dimension_exchange", "auto"])
def test_the_answer_is_that_of_balance(command, scheme):
    found = command("balance ring:4 --speeds 2,1,1,4 --times 10,4,6,1 --tolerance 1e-6 --json --scheme", scheme).json
    speeds, loads = [2.0, 1.0, 1.0, 4.0], [20.0, 4.0, 6.0, 4.0]
    whole = lb_mpi.balance("ring:4", loads, speeds, scheme=scheme, tolerance=1e-6)
    assert (found["steps"], found["imbalance"], found["converged"]) == (whole.steps, whole.imbalance, True)
    assert [abs(amount) for amount in whole.flow] == [amount for _, _, amount in found["flow"]]
    assert found["times_after"] == [load / speed for load, speed in zip(whole.loads, speeds, strict=True)]
    assert (found["speeds"], found["times"]) == (speeds, [10.0, 4.0, 6.0, 1.0])


def test_a_small_mesh_is_drawn_as_in_figure_2(command):
    out, err = command("balance mesh:2x2 --speeds 1,1,1,1 --times 4,0,0,0 --tolerance 1e-9")
    assert err == ""
    assert out.splitlines()[2:12] == [
        "+------+         +------+",
        "|  4.00|         |  0.00|",
        "|  1.00|  1.5 >  |  1.00|",
        "|s 1.00|         |s 1.00|",
        "+------+         +------+",
        " 1.5 v            0.5 v",
        "+------+         +------+",
        "|  0.00|         |  0.00|",
        "|  1.00|  0.5 >  |  1.00|",
        "|s 1.00|         |s 1.00|",
    ]
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
