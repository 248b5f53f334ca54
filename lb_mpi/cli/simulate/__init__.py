"""The command `simulate`: searches, rows and tasks on virtual ranks, which the tests and benchmarks use, too."""
