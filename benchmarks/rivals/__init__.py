"""Rivals of our stealing, in our simulator: GLB's lifelines, CTWS and A2WS; see `benchmarks.rivals.__main__`."""
