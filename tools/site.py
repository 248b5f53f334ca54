"""./launch/docs: the site from docs/, in an environment of its own; a warning is an error."""

from __future__ import annotations

import argparse
import shutil
import sys

from lb_mpi.cli.run import processes
from tools import limited
from tools.environment import ROOT, Environment, SetupError, prepare

SITE = ROOT / "build" / "site"
LIMIT_S = 600.0


def command(environment: Environment) -> list[str]:
    """Return the command line that builds the site."""
    sphinx = [str(environment.python), "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    return [*sphinx, "--doctree-dir", str(ROOT / "build" / "doctrees"), "--builder", "html", "docs", str(SITE)]


def main() -> int:
    """./launch/docs."""
    parser = argparse.ArgumentParser(
        prog="launch/docs",
        description="Set up an environment of its own, then build the site from docs/ into build/site.",
    )
    parser.parse_args()
    environment = Environment("mpich", ROOT / ".venv-docs")
    with processes.interruptible():
        try:
            prepare(environment, ["docs"])
        except SetupError as error:
            print(error, file=sys.stderr)
            return error.code
        print("building the site ...", flush=True)
        shutil.rmtree(SITE, ignore_errors=True)
        code = limited.run(command(environment), LIMIT_S, env=environment.variables(), cwd=ROOT)
    if code:
        print("the site could not be built without a warning", file=sys.stderr)
        return 1
    print(f"{SITE.relative_to(ROOT) / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
