"""Partitions of graphs: coarsen, bisect, restore and refine; pure."""
