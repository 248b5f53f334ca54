"""The joblib backend "lb_mpi", registered by `import lb_mpi.joblib` (see `lb_mpi.adapters.joblib`)."""

from lb_mpi.adapters.joblib import MAX_NBYTES as MAX_NBYTES
from lb_mpi.adapters.joblib import JoblibBackend as JoblibBackend
from lb_mpi.adapters.joblib import replace_processes as replace_processes
