"""A record of a run: what each rank did when, written by whatever carries a protocol."""
