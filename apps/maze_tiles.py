"""A maze searched by ranks that share no memory: each tile of the maze belongs to one rank.   (pure)

Where ranks share one array of cells, all see a mark at once (`apps.maze_search`).  Machines hear of it a message later,
and what they mark meanwhile is marked twice, unless everybody waits.  So here the maze is cut into square tiles, and the
cells of a tile are marked by its owner only.  Ways that lead into another's tile are sent to its owner, in batches: nothing
is visited twice, nobody waits, and only the borders of tiles are talked about.

The law
-------
- A cell is marked by the rank that owns its tile, once.
- A tile has one owner, or is under way in one WORK message.  In the beginning they are dealt out at random, in equal
  numbers, and all ranks know to whom.
- Only tiles that nobody has begun are given away, with the ways into them: no marks have to travel.
- Who has given a tile away keeps the ways into it that come, until the new owner tells whose it is (MOVED); from then on
  they are passed on to that one.  With a tile goes how often it was given away: of two such notices the later one counts.
- A way is sent once by each machine: the cell that it leads to is SENT in that machine's array.

A *way* into a cell is the cell and the direction in which it is entered, as one number: 16 * cell + direction.

What is saved are the marks: the ways that are left are those from marked cells to free ones.  What is under way then counts
no more, and is named by the number of its run.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

from apps import maze_kernel
from apps.maze_kernel import FREE, MARKED, SENT, STAY, Cells, Indices, Tiles
from apps.maze_search import Visits, check_ends, pack_state, resumed, steps
from lb_mpi import checks

WAYS, MOVED = range(2)  # what an OWNED payload holds
UNKNOWN = -1  # the owner of a tile that was given away, until he tells
HEAD = struct.Struct("<qqq")  # of a payload: run, sender, what it holds; of a tile in WORK: number, times given, ways
MOST_TILES = 1 << 20


def usual_tile(dim: int) -> int:
    """Return the cells a side of tiles for a maze of dim x dim cells: best of those simulated on three machines."""
    return min(512, max(64, dim // 16))


class Owners:
    """Which tile is whose, of `n`, as far as `rank` of `size` knows."""

    def __init__(self, rank: int, size: int, n: int) -> None:
        self.rank = rank
        self.owner = np.random.default_rng(0).permutation(np.arange(n, dtype=np.int64) % size)
        self.given = np.zeros(n, np.int64)  # how often each was given away
        self.unowned: dict[int, list[Indices]] = {}  # ways into tiles whose owner is UNKNOWN
        self.moved: dict[int, list[int]] = {}  # tiles that this rank has received, with their times, by giver

    def give(self, tile: int) -> int:
        """Return how often it was given away, this time included."""
        self.owner[tile] = UNKNOWN
        self.given[tile] += 1
        return int(self.given[tile])

    def adopt(self, tile: int, times: int, giver: int) -> list[Indices]:
        """Own it; return the ways that were kept for its owner."""
        self.owner[tile], self.given[tile] = self.rank, times
        if giver != self.rank:  # what nobody began may come back
            self.moved.setdefault(giver, []).extend([tile, times])
        return self.unowned.pop(tile, [])

    def learn(self, tile: int, times: int, owner: int) -> list[Indices]:
        """Learn who owns it; return the ways that were kept for the owner."""
        if times < self.given[tile]:
            return []
        self.owner[tile], self.given[tile] = owner, times
        return self.unowned.pop(tile, [])


class TiledMazeSearch(Visits):
    """One rank's part of the search (a `lb_mpi.searching.problem.Owning`); one unit of work is one new cell marked.

    cells    (dim + 2, dim + 2) uint8, C-contiguous: this rank's own, or one for all ranks of its machine; never copied
    rank     this rank's number, of `size`
    tile     cells a side of a tile, at least 4
    keeper   this rank saves the marks of its machine, and takes them from a save; one on each machine does

    The load is the number of tiles with ways into them that are still to be gone, the present one included.

    Errors: ValueError, TypeError for an array that is no maze, or whose entry or exit is blocked.
    """

    def __init__(self, cells: Cells, rank: int, size: int, *, tile: int, keeper: bool = True) -> None:
        super().__init__(rank, keeper)
        self.entry, self.exit = check_ends(cells)
        size, width = checks.integer("size", size, 1), len(cells)
        side = checks.integer("tile", tile, 4)
        across = -(-width // side)
        if across**2 > MOST_TILES:
            raise ValueError(f"tile = {side}: expected larger ones, at most {MOST_TILES} in a maze")
        self._tiles = Tiles(cells.reshape(-1), steps(width), self.exit, width, side)
        self._owners = Owners(self.rank, size, across**2)
        self._begun: set[int] = set()
        self._pending: dict[int, list[Indices]] = {}  # ways into tiles of this rank
        self._news: dict[int, list[Indices]] = {}  # by rank
        self._hand = maze_kernel.Hand(side)
        self._run = 0

    @property
    def cells(self) -> Cells:
        """The array of cells."""
        return self._tiles.cells.reshape(self._tiles.width, -1)

    def start(self) -> None:
        """Begin with the way into the entry, whoever owns its tile."""
        self._sort(np.array([16 * self.entry + STAY]))

    def work(self, units: int) -> int:
        """Mark up to `units` new cells, of one tile after the other; return how many."""
        units = checks.integer("units", units, 1)
        done = 0
        while done < units and not self.found and (self._hand.left or self._pending):
            if not self._hand.left:
                self._enter_tile()
            marked, ways = maze_kernel.flood(self._tiles, self._hand, units - done)
            self._sort(ways)
            done += marked
            self._found = bool(MARKED <= self._tiles.cells[self.exit] < SENT and self._owns(self.exit))
        self._visited += done
        return done

    def load(self) -> float:
        """Count the tiles that this rank still has to go into: 0.0 when there are none."""
        return float(len(self._pending) + self._hand.left)

    def split(self) -> bytes | None:
        """Give away half of the tiles that nobody has begun, packed; None when there are none."""
        parts = self.shares([1, 1])
        return parts[0] if parts else None

    def shares(self, weights: Sequence[int]) -> list[bytes]:
        """Give away tiles that nobody has begun, as `lb_mpi.searching.problem.Divisible` says."""
        fresh = [tile for tile in self._pending if tile not in self._begun]
        if not self._hand.left and len(fresh) == len(self._pending):
            fresh = fresh[1:]  # something is kept
        parts: list[bytes] = []
        for weight in weights[1:]:
            n = max(1, (len(fresh) * weight) // (weights[0] + weight))
            if not fresh:
                break
            parts.append(self._give(fresh[:n]))
            fresh = fresh[n:]
        return parts

    def absorb(self, payload: bytes) -> None:
        """Take in the tiles that another rank's `split` packed; ValueError when it isn't that."""
        run, giver, at = self._opened(payload, "tiles")
        if run != self._run:
            return  # what was saved holds the ways into them
        while at < len(payload):
            tile, times, n = HEAD.unpack_from(payload, at)
            ways = np.frombuffer(payload, np.int64, n, at + HEAD.size)
            at += HEAD.size + ways.nbytes
            self._pending.setdefault(tile, []).extend([ways, *self._owners.adopt(tile, times, giver)])

    def outgoing(self) -> list[tuple[int, bytes]]:
        """Tell givers whose their tiles are; and, when this rank is through with a tile, owners of ways into theirs."""
        sends = [(giver, self._packed(MOVED, np.array(moved))) for giver, moved in self._owners.moved.items()]
        self._owners.moved = {}
        if not self._hand.left:
            sends += [(owner, self._packed(WAYS, np.concatenate(ways))) for owner, ways in self._news.items()]
            self._news = {}
        return sends

    def incoming(self, payload: bytes) -> None:
        """Take in what another rank's `outgoing` has sent; ValueError when it isn't that."""
        run, sender, at = self._opened(payload, "ways")
        if run != self._run:
            return
        sent = np.frombuffer(payload, np.int64, offset=at)
        if HEAD.unpack_from(payload)[2] == WAYS:
            self._sort(sent)
            return
        for tile, times in sent.reshape(-1, 2).tolist():
            for ways in self._owners.learn(tile, times, sender):
                self._sort(ways)

    def save(self) -> bytes:
        """Pack what this rank did, as `MazeSearch.save` does: what one has saved the other goes on with."""
        flat = self._tiles.cells
        marks = np.where(flat == SENT, FREE, flat).astype(np.uint8) if self._keeper else None
        return pack_state(self._tiles.width - 2, self._visited, self._found, marks)

    def resume(self, states: Sequence[bytes], mine: Sequence[int]) -> None:
        """Go on from what was saved: each rank with the ways into its own tiles, which are dealt out anew.

        The keeper puts the marks into its machine's array; nobody may work before.  ValueError for those of another maze.
        """
        flat, visited, self._found = resumed(self.cells, states, mine)
        self._visited += visited
        if self._keeper:
            self._tiles.cells[:] = flat
        self._run = zlib.crc32(flat.tobytes())
        ways = maze_kernel.open_ways(self._tiles._replace(cells=flat), self._owners.owner, self.rank)
        self._sort(ways)
        if flat[self.entry] == FREE and 0 in mine:
            self.start()

    def _owns(self, cell: int) -> bool:
        return bool(self._owners.owner[maze_kernel.tiles_of(self._tiles, np.array([16 * cell]))[0]] == self.rank)

    def _enter_tile(self) -> None:
        """Take the ways into a tile in hand: one that was begun, if there is one, since those can't be given away."""
        tile = next((one for one in self._pending if one in self._begun), next(iter(self._pending)))
        self._begun.add(tile)
        self._hand.enter(tile, np.concatenate(self._pending.pop(tile)))

    def _sort(self, ways: Indices) -> None:
        """Sort ways: this rank's own, those to be sent, and those of no known owner."""
        if not len(ways):
            return
        tiles = maze_kernel.tiles_of(self._tiles, ways)
        order = np.argsort(tiles, kind="stable")
        tiles, ways, begin = tiles[order], ways[order], 0
        for end in [*(np.flatnonzero(np.diff(tiles)) + 1).tolist(), len(ways)]:
            tile, part, begin = int(tiles[begin]), ways[begin:end], end
            owner = int(self._owners.owner[tile])
            if owner == UNKNOWN:
                self._owners.unowned.setdefault(tile, []).append(part)
            elif owner != self.rank:
                self._news.setdefault(owner, []).append(part)
            else:
                cells = self._tiles.cells[part >> 4]
                if len(left := part[(cells == FREE) | (cells == SENT)]):
                    self._pending.setdefault(tile, []).append(left)

    def _give(self, tiles: Sequence[int]) -> bytes:
        packed = [HEAD.pack(self._run, self.rank, len(tiles))]
        for tile in tiles:
            ways = np.concatenate(self._pending.pop(tile))
            packed += [HEAD.pack(tile, self._owners.give(tile), len(ways)), ways.tobytes()]
        return b"".join(packed)

    def _packed(self, what: int, numbers: Indices) -> bytes:
        return HEAD.pack(self._run, self.rank, what) + numbers.tobytes()

    def _opened(self, payload: bytes, what: str) -> tuple[int, int, int]:
        if len(payload) < HEAD.size or len(payload) % 8:
            raise ValueError(f"payload of {len(payload)} bytes on rank {self.rank}: expected {what}")
        run, sender, _ = HEAD.unpack_from(payload)
        return run, sender, HEAD.size


def compile_kernels() -> None:
    """Compile all kernels, or load them from the cache: a small maze is searched."""
    cells = np.full((10, 10), maze_kernel.WALL, np.uint8)
    cells[1:-1, 1:-1] = FREE
    one = TiledMazeSearch(cells, 0, 1, tile=4)
    one.start()
    one.work(20)
    state = one.save()
    TiledMazeSearch(cells, 0, 1, tile=4).resume([state], [0])
