"""Saves: what a run needs to go on after it has died, in a folder from which a whole one can always be read."""
