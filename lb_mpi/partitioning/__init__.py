"""Which tasks go to which node: coarsen, bisect, restore and refine; pure."""
