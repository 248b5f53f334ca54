"""Names and openings in the library: a class name means one thing, a docstring begins with a verb or a noun."""

import ast
import doctest
import functools
import re
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest

import lb_mpi

LIBRARY = Path(__file__).resolve().parents[2] / "lb_mpi"
OPENINGS = {"As", "How", "What", "When", "Where", "Whether", "Which", "Who", "Whoever", "Whom", "Whose", "Why"}

# Words that had a meaning in this house only.
BANNED = re.compile(
    r"\b(verdict|told|telling|heard|served|unserved|judged?|Courses?|_course"
    r"|crew|ledger|Operation|Session|Gathering|errand)s?\b"
)
PARTS = {"verdict", "told", "tell", "telling", "heard", "served", "unserved", "judge", "judged", "course", "crew"}
PARTS |= {"ledger", "errand", "worth"}
FOLDERS = ("lb_mpi", "apps", "benchmarks", "tools", "tests")

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def nodes() -> list[tuple[str, ast.AST]]:
    """All nodes of the library's modules, each with the path of its module."""
    trees = [(path.relative_to(LIBRARY).as_posix(), ast.parse(path.read_text())) for path in sorted(LIBRARY.rglob("*.py"))]
    return [(name, node) for name, tree in trees for node in ast.walk(tree)]


def test_a_class_name_means_one_thing():
    places: dict[str, set[str]] = defaultdict(set)
    for name, node in nodes():
        if isinstance(node, ast.ClassDef):
            places[node.name].add(name)
    twice = [f"class {one}: in {', '.join(sorted(found))}" for one, found in places.items() if len(found) > 1]
    assert not twice, "\n".join(["expected each class name in one module only:", *twice])


def test_words_have_the_meaning_that_they_have_in_the_field():
    found = []
    paths = {path for folder in FOLDERS for path in (LIBRARY.parent / folder).rglob("*.py")} - {Path(__file__).resolve()}
    for path in sorted(paths):
        where = path.relative_to(LIBRARY.parent)
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if BANNED.search(line):
                found.append(f"{where}:{number}: {line.strip()}")
        with open(path, "rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.NAME and PARTS & {word.rstrip("s") for word in token.string.lower().split("_")}:
                    found.append(f"{where}:{token.start[0]}: the name {token.string}")
    assert not found, "\n".join(["expected the field's words (decision, sent, received, answered, ...):", *found])


def test_docstrings_open_with_a_verb_or_a_noun():
    wrong = []
    for name, node in nodes():
        text = ast.get_docstring(node) if isinstance(node, Documented) else None
        if text and text.split()[0].rstrip(",.:;") in OPENINGS:
            line = getattr(node, "lineno", 1)
            wrong.append(f"lb_mpi/{name}:{line}: {text.splitlines()[0]}")
    assert not wrong, "\n".join([f"expected a verb or a noun, not one of {', '.join(sorted(OPENINGS))}:", *wrong])


def test_one_list_has_all_public_names():
    tree = ast.parse((LIBRARY / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = [(name.asname, node.module) for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names]
    assert typed == [(name, f"lb_mpi.{module}") for module, names in lb_mpi._PUBLIC.items() for name in names.split()]
    reference = "".join(page.read_text() for page in sorted((LIBRARY.parent / "docs" / "reference").glob("*.md")))
    assert sorted(re.findall(r":: lb_mpi\.(\w+)$", reference, re.MULTILINE)) == lb_mpi.__all__


@pytest.mark.parametrize("name", ["allocate", "arrange", "balance", "fiedler", "partition", "partition_metrics"])
def test_public_functions_without_mpi_have_examples_that_print_what_they_show(name):
    function = getattr(lb_mpi, name)
    (example,) = doctest.DocTestFinder().find(function, name, globs={"lb_mpi": lb_mpi})
    assert example.examples
    said: list[str] = []
    assert doctest.DocTestRunner().run(example, out=said.append).failed == 0, "".join(said)
