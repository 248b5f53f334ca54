"""A record of a run: what each rank did when, written by the carrier of a protocol."""
