"""The methods of `lb_mpi.arrange`: modes of a layout, the secular equation, the aims, the methods.   (pure)"""
