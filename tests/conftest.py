"""Settings of all tests."""

import os

from hypothesis import settings

settings.register_profile("project", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("project")
os.environ.setdefault("LB_MPI_HANG_S", "0")  # on a busy machine ranks wait for long, and a warning is an error here
