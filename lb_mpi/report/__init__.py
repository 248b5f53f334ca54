"""Reports of recorded runs: a page, pictures, a trace, and how a run goes that is under way."""
