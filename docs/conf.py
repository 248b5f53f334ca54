"""The site: Sphinx with MyST (pages in Markdown) and Furo; ./launch/docs builds it."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import docstrings  # noqa: E402
import protocol  # noqa: E402

import lb_mpi  # noqa: E402

project = "lb_mpi"
author = copyright = "The lb_mpi developers"
version = release = lb_mpi.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["generated"]
myst_heading_anchors = 3
autodoc_mock_imports = ["mpi4py"]  # the reference needs no MPI
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
python_display_short_literal_types = True
python_maximum_signature_line_length = 90

html_theme = "furo"
pygments_style = "default"  # colours both lines of a diff
html_title = "lb_mpi"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = False


def setup(app: object) -> None:
    """Draw what is drawn, and read docstrings as they are written here."""
    protocol.draw_all(HERE / "generated")
    app.connect("autodoc-process-docstring", docstrings.process)  # type: ignore[attr-defined]
