"""Refuse an old Python at once: pip compares versions only after it has read, and perhaps built, all dependencies."""

import sys

from setuptools import setup

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit("lb_mpi needs Python 3.11 or newer: this is Python %d.%d" % sys.version_info[:2])  # noqa: UP031
setup()
