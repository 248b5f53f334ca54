"""Reports of recorded runs: a page, pictures, a trace, and the progress of a current run."""
