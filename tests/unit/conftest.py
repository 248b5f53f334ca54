"""Fixtures of the serial tests."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from lb_mpi.__main__ import main


class Printed(NamedTuple):
    """The output of a command."""

    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out, parse_constant=pytest.fail)  # NaN is no JSON


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Printed]:
    """Runs a line of `lb_mpi`, given in pieces: of a text each word is an argument, anything else is one."""

    def run(*pieces: object, code: int = 0) -> Printed:
        argv = [word for piece in pieces for word in (piece.split() if isinstance(piece, str) else [str(piece)])]
        assert main(argv) == code
        return Printed(*capsys.readouterr())

    return run
