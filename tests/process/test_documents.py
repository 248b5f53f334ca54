"""Commands of README, the tutorial and the how-to pages are run, with mpiexec; what is shown is what is seen.

Those marked as long are run when LB_MPI_LONG_DOCUMENTS is set.
"""

import os
import re
import subprocess

import pytest

from tools.documents import LANGUAGES, PAGES, ROOT, Block, blocks, same
from tools.environment import here
from tools.stages import PATIENT

pytestmark = pytest.mark.one_mpi

LIMIT_S = 200.0  # of a command, on a busy machine
LONG = bool(os.environ.get("LB_MPI_LONG_DOCUMENTS"))
PRINTS = re.compile(r"python -m lb_mpi (simulate|allocate|arrange|balance|partition) (?!.* -o )")  # always the same
CLONE = re.compile(r"\./launch/|-m (apps|benchmarks)\b")  # what only the clone has


_printed = {}  # by commands that only print


def names(page):
    return str(page.relative_to(ROOT))


def run(command, folder):
    """Run a command as a shell does in `folder`; what it has printed on stdout.

    A command that only prints runs once, however many pages show it.
    """
    if command in _printed:
        return _printed[command]
    environment = here()
    variables = {**environment.job(1, [])[1], **PATIENT, "HOME": str(folder)}
    with open(folder / "stderr", "w+b") as errors:
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=errors, timeout=LIMIT_S
        )
        errors.seek(0)
        assert done.returncode == 0, f"{command}\n{done.stdout.decode()}\n{errors.read().decode()}"
    if PRINTS.match(command):
        _printed[command] = done.stdout.decode()
    return done.stdout.decode()


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_shown_output_is_what_the_commands_print(page, tmp_path):
    pytest.importorskip("mpi4py")
    if CLONE.search(page.read_text()):
        for name in ("apps", "benchmarks", "launch", "lb_mpi", "tests"):
            (tmp_path / name).symlink_to(ROOT / name)
    seen = None
    for block in blocks(page):
        if block.language == "text" and seen is not None and not block.mark.startswith("not run"):
            figures_differ = block.mark == "figures differ"
            assert same(block.text, seen, figures_differ=figures_differ), f"line {block.line}: seen\n{seen}"
        seen = None
        if block.mark.startswith("not run") or (block.mark == "long" and not LONG):
            continue
        if block.name:
            (tmp_path / block.name).write_text(block.text)
        if block.language == "sh":
            seen = "".join(run(command, tmp_path) for command in block.commands)


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_each_block_says_what_it_is(page):
    for block in blocks(page):
        where = f"{names(page)}, line {block.line}"
        assert block.language in LANGUAGES, where
        assert block.mark in ("", "long", "figures differ") or re.fullmatch("not run: .{5,}", block.mark), where
        assert block.language != "python" or block.name or block.mark.startswith("not run"), f"{where}: no file"


def test_a_wrong_output_is_noticed():
    assert same("a  1.5 s\n", "a 12.25 s", figures_differ=True)
    assert not same("a 1.5 s", "b 1.5 s", figures_differ=True)
    assert not same("a 1.5 s", "a 1.6 s", figures_differ=False)


def test_blocks_are_found_with_their_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("x\n<!-- long -->\n```sh\n# no command\na \\\nb\nc\n```\n\n```python\n# f.py\nd\n```\n")
    first, second = blocks(page)
    assert first == Block("sh", "long", "# no command\na \\\nb\nc\n", 3)
    assert first.commands == ["a  b", "c"]
    assert (first.name, second.name, second.line) == ("", "f.py", 10)


@pytest.mark.parametrize("page", sorted({*PAGES, *(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md"}), ids=names)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(
        r"\]\(([^)#:]+)(?:#[^)]*)?\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    ):
        assert (page.parent / target).exists(), target
