"""The list of the benchmarks: python -m benchmarks"""

from __future__ import annotations

import ast
from pathlib import Path

HERE = Path(__file__).parent


def benchmarks() -> dict[str, str]:
    """Names of what can be run as `python -m benchmarks.NAME`, each with the first line of its docstring."""
    found = {}
    for path in sorted([*HERE.glob("*.py"), *HERE.glob("*/__main__.py")]):
        tree = ast.parse(path.read_text())
        runs = any(isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in tree.body)
        name = path.stem if path.parent == HERE else path.parent.name
        if runs and name != "__main__" and not name.endswith("_ranks"):  # those are run by others
            line = (ast.get_docstring(tree) or "").partition("\n")[0]
            found[name] = line.partition("  python -m")[0].partition("  mpiexec")[0].rstrip(" :")
    return found


def main() -> None:
    """Print it."""
    found = benchmarks()
    width = max(map(len, found))
    print("python -m benchmarks.NAME -h says how each is run:\n")
    print("\n".join(f"  {name:<{width}}  {text}" for name, text in found.items()))


if __name__ == "__main__":
    main()
