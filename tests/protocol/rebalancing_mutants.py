"""Known-wrong variants of a rebalancing: (module, function, what stands there, what the mutant says instead)."""

from lb_mpi.rebalancing import actor, deciding, flow, moving, pairs, slabs

MUTANTS = [
    # labels
    (actor, "Rebalancing._move", "Owners(labels, np.concatenate([*ghosts, np.zeros(0, dtype=np.int64)]).astype(np.int64)), {}", "Owners(labels, owners_now(self.part, self.rank).ghosts), {}"),  # a stale owner of a ghost
    (actor, "Rebalancing._move", "labels_for(self.part, labels, other)", "labels_for(self.part, np.full_like(labels, self.rank), other)"),
    (moving, "rows_of", "part.vertices[index], indptr, numbers[heads], labels[heads]", "part.vertices[index], indptr, numbers[heads], np.concatenate(owners_now(part, int(owners.local.min())))[heads]"),
    (moving, "labels_for", "labels[part.send[part.send_indptr[index] : part.send_indptr[index + 1]]]", "labels[: part.send_indptr[index + 1] - part.send_indptr[index]]"),
    # rows
    (moving, "joined", 'order = np.argsort(vertices, kind="stable")', "order = np.arange(len(vertices))"),  # unsorted
    (moving, "rows_of", "return Moving(piece, costs[index])", "return Moving(piece, np.ones(len(index)))"),  # estimates left behind
    (moving, "joined", "np.concatenate([one.costs for one in parts])[order]", "np.resize(parts[0].costs, len(order))"),
    (moving, "rows_of", "part.weights[entries], part.vertex_weights[index]", "part.weights[entries], part.vertex_weights[: len(index)]"),
    (moving, "joined", "np.concatenate([getattr(one, name) for one in pieces])[entries]", "np.concatenate([getattr(one, name) for one in pieces])"),
    (actor, "Rebalancing._move", "payloads.get(other, nothing)", "nothing"),  # lost
    (actor, "Rebalancing._move", "for other, payload in arrived.items() if len(payload)}", "for other, payload in list(arrived.items())[:1] if len(payload)}"),
    # the commit
    (actor, "Rebalancing._commit", "        if failed:\n            self.outcome = self.outcome._replace(failed=True)\n            return\n", ""),
    (actor, "Rebalancing._commit", "[float(self.failed), 0.0, 0.0, 0.0]", "[0.0, 0.0, 0.0, 0.0]"),
    (actor, "Rebalancing._choose", "            self.failed, labels = True, own\n", "            self.failed, labels = True, own\n            return labels, links\n"),  # nobody knows
    (actor, "Rebalancing.fail", "self.failed = True", "pass"),
    # the flow
    (actor, "Rebalancing._choose", "Flow(self.rank, near, load, speed,", "Flow(self.rank, near, load, 1.0,"),  # an old speed
    (actor, "Rebalancing._choose", "Flow(self.rank, near, load, speed,", "Flow(self.rank, near, load / 2.0, speed,"),
    (actor, "Rebalancing._greet", "if int(theirs) != component}", "if False}"),  # a rank without vertices never gets any
    (actor, "Rebalancing._greet", "if int(theirs) != component}", "if int(theirs) > component}"),  # one end only
    (actor, "Rebalancing._greet", "if int(theirs) != component}", "if True}"),  # to ranks that do not touch
    (actor, "Rebalancing._greet", "                    grown = False\n                    continue\n", "                    pass\n"),  # too early
    (actor, "Rebalancing._choose", "- sum(stray.values())", ""),  # stray pieces count on both ranks
    # the choice
    (actor, "Rebalancing._choose", "yield Await((), [(other, RebalanceMessage(RebalanceKind.PAIR)) for other in links])", "pass"),  # nobody learns of it
    (pairs, "_received", "        raise JobFailed\n", "        pass\n"),
    (pairs, "_Chooser.__init__", "mine > (links.speeds[other], -other)", "rank < other or links.speed > links.speeds[other]"),  # both choose
    (flow, "Levelling.ends", "residual <= self._tolerance", "residual <= 10.0 * self._tolerance"),
    (actor, "Rebalancing._level_together", "for other in near)", "for other in near[:1])"),
    (actor, "Rebalancing._level_together", "= load, self.mine.speed, sum", "= load, 1.0, sum"),
    # the opportunities
    (deciding, "Opportunities.skips", "self._skipped = max(0, self._skipped - 1)", "pass"),  # never again
    (deciding, "Opportunities.decide", "self.arguments.when == \"auto\" and", ""),
    (deciding, "Opportunities.record_call", "min(", "max("),  # one that waits for a core makes the next ones rare
    (deciding, "GraphTotals.differs", "self.most.checksum != -self.most.minus_checksum", "False"),
    # slabs
    (slabs, "_Ranges.within", "here + self._least[k]", "here"),  # an empty range
    (slabs, "_Ranges.__init__", "self.ends - counts, np.append(self.ends[1:], self.ends[-1])", "0 * self.ends, 0 * self.ends + self.ends[-1]"),  # too far
    (slabs, "best_ends", "ranges.within(middle) is None", "ranges.within(middle) is None or most < 1.3 * ranges.mean"),  # not the best
    (actor, "Rebalancing._ends", "speeds[self.rank] = ", "speeds[(self.rank + 1) % self.size] = "),  # of another rank
    (actor, "Rebalancing.__init__", "{rank + 1, rank - 1} & {*range(size)} if slabs else", ""),  # slabs on a ring
    # moves pay, and keep what they promised
    (actor, "is_better", "return after_s < before_s", "return True"),  # a move that is worse is committed
    (actor, "is_better", "after_s < (1.0 - NOISE) * before_s", "True"),
    (actor, "is_better", "after_s <= max(before_s, level_s)", "True"),
    (actor, "may_cut", "reason is not BalanceReason.CUT or new < old", "True"),
    (actor, "Rebalancing._commit", "(self.mine.load, float(self.built.costs.sum()))", "2 * (float(self.built.costs.sum()),)"),
    (actor, "Rebalancing.__init__", "{*undo.owners.tolist(), *undo.ranks} - {rank}", "{*undo.owners.tolist()} - {rank}"),  # one end only
    (deciding, "Payback.fails", "self.saved_s < -cost_s", "False"),  # never undone
    (deciding, "Payback.fails", "self.saved_s < -cost_s", "self.saved_s < 0.0"),  # for noise
    (deciding, "Payback.in_vain", "self.patience = min(2 * self.patience, MOST_PATIENCE)", "pass"),  # a failed promise is forgotten
    (deciding, "Payback.undone", "-(self.saved_s or 0.0), None", "0.0, None"),  # a step of an hour is forgotten
    (deciding, "Payback.undone", "-(self.saved_s or 0.0), None", "-(self.saved_s or 0.0), self.saved_s"),  # undone twice
    (deciding, "Payback.moved", "max(self.patience // 2, 1)", "self.patience"),
    (deciding, "Payback.moved", "        self.saved_s = 0.0\n", ""),
    (deciding, "Payback.measure", "most.before_s - most.now_s", "most.now_s - most.now_s"),
    (deciding, "Payback.measure", "self.lost_s += calls *", "self.lost_s += 0.0 *"),
    (deciding, "Payback.measure", "                self.forget()\n", "                pass\n"),
    (deciding, "Payback.price_s", " + 2.0 * max(0.0, -(self.saved_s or 0.0))", ""),  # away from parts that were wrong
    (deciding, "Opportunities._decided", "(moves.patience == 1 or before <= bound)", "True"),
    (deciding, "Opportunities.dropped", 'self.arguments.when != "always" and ', ""),
    # the sums
    (deciding, "Opportunities._decided", "missing = size / n_timed", "missing = 1.0"),
]  # fmt: skip
