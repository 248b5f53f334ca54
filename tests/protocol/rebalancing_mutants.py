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
    ("actor", "            return self._label(self.owners.local)\n        if isinstance(job, Pack)", "            return []\n        if isinstance(job, Pack)"),  # nobody is told
    ("actor", "return [] if job is None else self._ask_commit()", "return []"),
    # the flow
    ("actor", "Flow(self.rank, self._links, load, speed,", "Flow(self.rank, self._links, load, 1.0,"),  # an old speed
    ("actor", "Flow(self.rank, self._links, load, speed,", "Flow(self.rank, self._links, load / 2.0, speed,"),
    ("actor", "alone[other] or not touching", "False"),  # a rank without vertices never gets any
    ("actor", "alone[other] or not touching", "alone[other]"),  # one end only
    ("actor", "alone[other] or not touching", "True"),  # to ranks that do not touch
    ("actor", "if residual > self._tolerance and", "if residual > 10.0 * self._tolerance and"),
    # the sums
    ("actor", "speed *= self.size / n_known", "pass"),
    ("actor", "self._units = [UNIT * unit for unit in units]", "self._units = units"),  # rounded to the largest
    ("actor", "or mark != -minus_mark", ""),
]  # fmt: skip
