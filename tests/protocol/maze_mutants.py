"""Known-wrong variants of the maze by tiles: (function, what stands there, what the mutant says instead)."""

MUTANTS = [
    # tiles that are given away
    ("Owners.give", "        self.owner[tile] = UNKNOWN\n", ""),  # and kept
    ("Owners.give", "        self.given[tile] += 1\n", ""),
    ("TiledMazeSearch.shares", "[tile for tile in self._pending if tile not in self._begun]", "list(self._pending)"),  # with marks in them
    ("TiledMazeSearch._give", "ways = np.concatenate(self._pending.pop(tile))\n            packed", "ways = self._pending.pop(tile)[0]\n            packed"),
    ("Owners.adopt", "self.owner[tile], self.given[tile] = self.rank, times\n", "self.given[tile] = times\n"),
    ("TiledMazeSearch.absorb", "extend([ways, *self._owners.adopt(tile, times, giver)])", "extend([ways, *self._owners.adopt(tile, times, giver)][:1])"),  # what came meanwhile is lost
    ("Owners.adopt", "            self.moved.setdefault(giver, []).extend([tile, times])\n", "            pass\n"),
    ("Owners.adopt", "        if giver != self.rank:", "        if True:"),
    # notices of owners
    ("TiledMazeSearch.incoming", "            for ways in self._owners.learn(tile, times, sender):\n                self._sort(ways)\n", "            self._owners.learn(tile, times, sender)\n"),
    ("Owners.learn", "self.owner[tile], self.given[tile] = owner, times\n", "self.given[tile] = times\n"),
    ("Owners.learn", "        if times < self.given[tile]:\n            return []\n", ""),  # of earlier owners, too
    # ways
    ("TiledMazeSearch.outgoing", "        self._owners.moved = {}\n", ""),
    ("TiledMazeSearch.outgoing", "            self._news = {}\n", ""),
    ("TiledMazeSearch.outgoing", "        if not self._hand.left:\n            sends", "        if False:\n            sends"),
    ("TiledMazeSearch._sort", "self._owners.unowned.setdefault(tile, []).append(part)", "pass"),
    ("TiledMazeSearch._sort", "self._news.setdefault(owner, []).append(part)", "self._news[owner] = [part]"),
    ("TiledMazeSearch._sort", "self._pending.setdefault(tile, []).append(left)", "self._pending[tile] = [left]"),
    ("TiledMazeSearch._sort", "(cells == FREE) | (cells == SENT)", "cells == FREE"),
    ("TiledMazeSearch.load", "float(len(self._pending) + self._hand.left)", "float(len(self._pending))"),
    # saves
    ("TiledMazeSearch.save", "np.where(flat == SENT, FREE, flat).astype(np.uint8)", "flat"),
    ("TiledMazeSearch.absorb", "        if run != self._run:\n            return  # what was saved", "        if False:\n            return  # what was saved"),
    ("TiledMazeSearch.resume", "        self._visited += visited\n", ""),
    ("TiledMazeSearch.resume", "if flat[self.entry] == FREE and 0 in mine:", "if False:"),
    ("TiledMazeSearch.resume", "self._owners.owner, self.rank)\n        self._sort(ways)", "self._owners.owner, self.rank)"),
]  # fmt: skip
