"""Programs started, watched, slowed down, and ended: what stands behind launch/run, launch/cluster and launch/throttle."""
