"""The command `simulate`: searches, rows, tasks and graphs on virtual ranks, which the tests and benchmarks use, too."""
