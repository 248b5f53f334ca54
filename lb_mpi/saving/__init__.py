"""Saves: the data for resuming a run, in a folder that always keeps a complete save; pure."""
