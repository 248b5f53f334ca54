"""The methods of `lb_mpi.arrange`: modes of a layout, the secular equation, objectives, search methods.   (pure)"""

OBJECTIVES = "uniform", "paper"
METHODS = "exhaustive", "paper", "fill", "swap", "anneal"
