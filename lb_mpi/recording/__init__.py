"""A run as it was: what each rank did when, what moved between ranks, what was decided; kept in one file a rank."""
