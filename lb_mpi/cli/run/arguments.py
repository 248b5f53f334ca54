"""A command line that suggests what a misspelt option or word may have meant."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from lb_mpi.checks import meant


class Parser(argparse.ArgumentParser):
    """A parser whose errors about an unknown option or word name the one that resembles it."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error; exit."""
        super().error(message + self.hint(message))

    def hint(self, message: str) -> str:
        """Return "; did you mean ...?" for an error about an unknown option or word, if one resembles it."""
        if found := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            return meant(found[1], re.findall(r"[^\s',]+", found[2]))
        if found := re.search(r"unrecognized arguments:.*?(--[^\s=]+)", message):
            return meant(found[1], re.findall(r"--[a-z-]+", self.format_help()))
        return ""
