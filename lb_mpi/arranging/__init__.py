"""How `lb_mpi.arrangement` finds its answers: modes of a layout, the secular equation, the aims, the methods.   (pure)"""
