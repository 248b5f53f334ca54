"""How `lb_mpi.arrange` finds its answers: modes of a layout, the secular equation, the aims, the methods.   (pure)"""
