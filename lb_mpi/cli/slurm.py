"""The command `slurm-script`: a batch script that starts a program with `python -m lb_mpi run` on the nodes of a job."""

from __future__ import annotations

from importlib import resources

from lb_mpi.cli.dispatch import Command

COMMANDS = {
    "slurm-script": Command(
        lambda _parser: None,
        lambda _options: {"script": resources.files("lb_mpi.cli").joinpath("slurm.sbatch").read_text()},
        lambda answer: [answer["script"].rstrip("\n")],
    )
}
