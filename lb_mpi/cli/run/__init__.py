"""Start, watch, restart and end programs: launch/run, and the entry points of launch/cluster and launch/throttle."""
