"""Known-wrong variants of the maze by tiles: (what stands there, what the mutant says instead)."""

MUTANTS = [
    # tiles that are given away
    ("        self.owner[tile] = UNKNOWN\n", ""),  # and kept
    ("        self.given[tile] += 1\n", ""),
    ("[tile for tile in self._pending if tile not in self._begun]", "list(self._pending)"),  # with marks in them
    ("ways = np.concatenate(self._pending.pop(tile))\n            packed", "ways = self._pending.pop(tile)[0]\n            packed"),
    ("self.owner[tile], self.given[tile] = self.rank, times\n", "self.given[tile] = times\n"),
    ("extend([ways, *self._deeds.take(tile, times, giver)])", "extend([ways, *self._deeds.take(tile, times, giver)][:1])"),  # what came meanwhile is lost
    ("            self.tales.setdefault(giver, []).extend([tile, times])\n", "            pass\n"),
    ("        if giver != self.rank:", "        if True:"),
    # tales of owners
    ("            for ways in self._deeds.hear(tile, times, sender):\n                self._sort(ways)\n", "            self._deeds.hear(tile, times, sender)\n"),
    ("self.owner[tile], self.given[tile] = owner, times\n", "self.given[tile] = times\n"),
    ("        if times < self.given[tile]:\n            return []\n", ""),  # of earlier owners, too
    # ways
    ("        self._deeds.tales = {}\n", ""),
    ("            self._to_tell = {}\n", ""),
    ("        if not self._hand.left:\n            sends", "        if False:\n            sends"),
    ("self._deeds.limbo.setdefault(tile, []).append(part)", "pass"),
    ("self._to_tell.setdefault(owner, []).append(part)", "self._to_tell[owner] = [part]"),
    ("self._pending.setdefault(tile, []).append(left)", "self._pending[tile] = [left]"),
    ("(cells == FREE) | (cells == TOLD)", "cells == FREE"),
    ("float(len(self._pending) + self._hand.left)", "float(len(self._pending))"),
    # saves
    ("np.where(flat == TOLD, FREE, flat).astype(np.uint8)", "flat"),
    ("        if run != self._run:\n            return  # what was saved", "        if False:\n            return  # what was saved"),
    ("        self._visited += visited\n", ""),
    ("if flat[self.entry] == FREE and 0 in mine:", "if False:"),
    ("self._deeds.owner, self.rank)\n        self._sort(ways)", "self._deeds.owner, self.rank)"),
]  # fmt: skip
