"""Known-wrong variants of a rebalancing: (module, text, other text)."""

MUTANTS = [
    # labels
    ("actor", "self.owners = self.owners._replace(ghosts=", "self.owners._replace(ghosts="),  # a stale owner of a ghost
    ("actor", "labels_for(self.part, labels, other)", "labels_for(self.part, np.full_like(labels, self.rank), other)"),
    ("moving", "part.vertices[index], indptr, numbers[heads], labels[heads]", "part.vertices[index], indptr, numbers[heads], np.concatenate(owners_now(part, int(owners.local.min())))[heads]"),
    ("moving", "labels[part.send[part.send_indptr[place] : part.send_indptr[place + 1]]]", "labels[: part.send_indptr[place + 1] - part.send_indptr[place]]"),
    # rows
    ("moving", 'order = np.argsort(vertices, kind="stable")', "order = np.arange(len(vertices))"),  # unsorted
    ("moving", "return Moving(piece, costs[index])", "return Moving(piece, np.ones(len(index)))"),  # estimates left behind
    ("moving", "np.concatenate([one.costs for one in parts])[order]", "np.resize(parts[0].costs, len(order))"),
    ("moving", "part.weights[entries], part.vertex_weights[index]", "part.weights[entries], part.vertex_weights[: len(index)]"),
    ("moving", "np.concatenate([getattr(one, name) for one in pieces])[entries]", "np.concatenate([getattr(one, name) for one in pieces])"),
    ("actor", "payloads.get(other, nothing)", "nothing"),  # lost
    ("actor", "for other, payload in received.items() if len(payload)}", "for other, payload in list(received.items())[:1] if len(payload)}"),
    # the commit
    ("actor", "        if failed:\n            return self._end(self.outcome._replace(problem=RebalanceProblem.FAILED))\n        self._trigger", "        self._trigger"),
    ("actor", "maxima=[self.failed, 0.0, 0.0, 0.0]", "maxima=[False, 0.0, 0.0, 0.0]"),
    ("actor", "            return self._give_up()\n        if isinstance(job, Pack)", "            return []\n        if isinstance(job, Pack)"),  # nobody is told
    ("actor", "return [] if job is None else self._ask_commit()", "return []"),
    # the flow
    ("actor", "Flow(self.rank, near, load, speed,", "Flow(self.rank, near, load, 1.0,"),  # an old speed
    ("actor", "Flow(self.rank, near, load, speed,", "Flow(self.rank, near, load / 2.0, speed,"),
    ("actor", "if int(component) != self._component}", "if False}"),  # a rank without vertices never gets any
    ("actor", "if int(component) != self._component}", "if int(component) > self._component}"),  # one end only
    ("actor", "if int(component) != self._component}", "if True}"),  # to ranks that do not touch
    ("actor", "        if not grown:\n            return self._begin_flow()\n", "        return self._begin_flow()\n"),  # too early
    ("actor", "- sum(self._repairs.values())", ""),  # stray pieces count on both ranks
    # the choice
    ("actor", "sends = [(other, RebalanceMessage(RebalanceKind.PAIR)) for other in self._links]", "sends = []"),  # nobody learns of it
    ("actor", "return self._give_up() if self.failed or len(known) < len(received) else", "return"),
    ("pairs", "mine > (links.speeds[other], -other)", "rank < other or links.speed > links.speeds[other]"),  # both choose
    ("actor", "if residual > self._tolerance and", "if residual > 10.0 * self._tolerance and"),
    # a decision that holds
    ("actor", "abs(seconds - held.seconds) > most", "False"),
    ("actor", "        self.holding = NOTHING_HOLDS\n", "        pass\n"),  # after a move, too
    ("actor", "self.failed, mark, -mark, changed,", "self.failed, mark, -mark, self.rank == 0 and changed,"),
    # slabs
    ("ends", "np.clip(shift_cuts(loads, shares, tolerance), old[:-2], old[2:])", "shift_cuts(shares, loads, tolerance)"),
    ("ends", "if left > 0.0 else -np.inf", "if left < 0.0 else -np.inf"),
    ("ends", "owners[min(int(np.searchsorted(owners, rank)), len(owners) - 1)] = rank", "pass"),  # an empty range
    ("actor", "numbers[:, self.rank] = [", "numbers[:, 0] = ["),  # of another rank
    ("actor", "{rank + 1, rank - 1} & {*range(size)} if slabs else", ""),  # slabs on a ring
    ("actor", "Shift(-float(flow[self.rank]), float(flow[self.rank + 1]))", "Shift(float(flow[self.rank]), float(flow[self.rank + 1]))"),
    ("actor", "if isinstance(job, Shift | Choose):", "if isinstance(job, Choose):"),  # nobody is told of a failure
    # the sums
    ("actor", "speed *= self.size / n_known", "pass"),
    ("actor", "self._units = [UNIT * unit for unit in units]", "self._units = units"),  # rounded to the largest
    ("actor", "or mark != -minus_mark", ""),
]  # fmt: skip
