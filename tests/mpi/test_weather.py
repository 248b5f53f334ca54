"""The weather app on real MPI: the same bits with any balancing, on any number of ranks; clear errors."""


import numpy as np
import pytest
from mpi4py import MPI

from apps import weather
from apps.weather_physics import Climate, physics, wind
from tests.mpi.sizes import COMM
from tests.mpi.test_apps import alone, answer, run

SMALL = ["--shape", "24x48", "--levels", "6", "--steps", "6"]
pytestmark = [pytest.mark.mpi, pytest.mark.one_mpi]


def test_saved_steps_go_on_on_another_number_of_ranks(monkeypatch, tmp_path):
    save = ["--save", str(COMM.bcast(tmp_path / "saves")), "--save-every", "3"]
    for steps, first in (("4", 0), ("5", 4), ("5", 5)):
        code, out, _ = run(weather, monkeypatch, *SMALL[:-1], steps, *save)
        assert code == 0
        assert out.startswith(f"went on from step {first}, saved in ") == (first > 0)
    expected = alone(weather, *SMALL, "--balance", "none")["checksum"]
    if COMM.rank == 0:
        options = weather.COMMAND.parser("app").parse_args([*SMALL, *save, "--balance", "none"])
        found, _ = weather.main(MPI.COMM_SELF, options)
        assert (found["checksum"], found["first_step"]) == (expected, 5)
    COMM.Barrier()
    for extra, says in (
        (["--steps", "5"], "steps = 5: expected at least 6, the step that is saved in"),
        (["--levels", "7"], "levels = 7: expected 6, as in what is saved in"),
        (["--shape", "48x48"], "shape = [48, 48]: expected [24, 48], as in what is saved in"),
        (["--save-every", "-1"], "--save-every = -1: expected an integer >= 0"),
    ):
        code, out, err = run(weather, monkeypatch, *SMALL, *save, *extra)
        assert (code, out) == (2, "")
        assert says in err


def test_a_change_of_speed_is_in_the_bound_and_printed(monkeypatch):
    answers = [answer(weather, monkeypatch, *SMALL, *more) for more in ([], ["--speed-changes", "0:0:1000:0.5"])]
    assert answers[0]["checksum"] == answers[1]["checksum"]
    for given, power in zip(answers, (COMM.size, COMM.size - 0.5), strict=True):
        assert given["lower_bound_seconds"] == pytest.approx(given["cpu_seconds"] / power)
    assert [one["after_seconds"] for one in answers[1]["steps_to_settle"]] == [0.0]


def test_steps_until_it_has_settled():
    imbalances, begins = [0.9, 0.1, 0.1, 0.8, 0.3, 0.1, 0.2, 0.1, 0.1], np.arange(9.0)
    found = [weather.steps_to_settle(imbalances, begins, moment) for moment in (0.0, 1.0, 3.0, 2.5, 8.0)]
    assert found == [1, 0, 4, 4, None]


def test_the_halo_has_the_neighbours_cells():
    block = weather.Block(COMM, (24, 48), 3)
    whole = Climate((24, 48), slice(0, 48), slice(0, 24)).initial(3)
    whole += np.arange(24 * 48).reshape(48, 24, 1)
    rows, columns = weather.most_square_mesh(COMM.size)
    row, column = divmod(COMM.rank, columns)
    lat, lon = row * block.n_lat, column * block.n_lon
    block.columns = whole[lon : lon + block.n_lon, lat : lat + block.n_lat].reshape(-1, 3)
    block.exchange_halo()
    block.fill()
    padded = np.pad(np.pad(whole, ((1, 1), (0, 0), (0, 0)), mode="wrap"), ((0, 0), (1, 1), (0, 0)), mode="edge")
    part = padded[lon : lon + block.n_lon + 2, lat : lat + block.n_lat + 2]
    np.testing.assert_array_equal(block.air[1:-1], part[1:-1])
    np.testing.assert_array_equal(block.air[:, 1:-1], part[:, 1:-1])
    assert rows * block.n_lat == 24


def test_kernels_against_plain_python():
    rng = np.random.default_rng(1)
    air = rng.uniform(220, 300, (5, 4, 7))
    after = np.empty((3, 2, 7))
    wind(air, after)
    mixed = air[:-2, 1:-1] + air[2:, 1:-1] + air[1:-1, :-2] + air[1:-1, 2:] - 4 * air[1:-1, 1:-1]
    expected = air[1:-1, 1:-1] + 0.1 * (air[:-2, 1:-1] - air[1:-1, 1:-1]) + 0.04 * mixed
    np.testing.assert_allclose(after, expected, rtol=1e-14)
    columns, sun, storm = rng.uniform(220, 300, (9, 7)), rng.uniform(-1, 1, 9).clip(0), rng.uniform(0, 1, 9)
    together = physics(columns, sun, storm)
    for k in range(9):  # a column doesn't depend on the others in the block
        np.testing.assert_array_equal(physics(columns[k : k + 1], sun[k : k + 1], storm[k : k + 1])[0], together[k])
        np.testing.assert_allclose(
            physics.py_func(columns[k : k + 1], sun[k : k + 1], storm[k : k + 1])[0], together[k]
        )
