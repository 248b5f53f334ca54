"""What is claimed, measured: each script prints ratios against a peer or a bound, both run in turn in one call."""
