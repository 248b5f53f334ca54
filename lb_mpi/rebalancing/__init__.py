"""Rebalancing of a distributed graph: flows between neighbouring parts, and the vertices that carry them; pure."""
