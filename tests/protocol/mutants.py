"""Known-wrong variants of a search: (module, function, what stands there, what the mutant says instead)."""

from lb_mpi.searching import bound, drafting, saves, searcher, termination, walking

MUTANTS = [
    # the holes of the paper
    (drafting, "NOBODY", "NOBODY = -1", "NOBODY = 0"),
    (drafting, "Drafting.settle", "Message(Kind.DRAFTING, self.rank, self.seq)", "Message(Kind.DRAFTING, self.rank, self.seq, self.rank)"),
    (drafting, "Drafting._pass_or_volunteer", "(State.BUSY, State.WAIT_FOR_ADMISSION):\n            return [(self.successor, message)]", "(State.BUSY, State.WAIT_FOR_ADMISSION):\n            return []"),
    (drafting, "Drafting.settle", "self.state is State.BUSY and not self.load", "self.state in (State.BUSY, State.WAIT_FOR_ADMISSION) and not self.load"),
    # promises
    (drafting, "Drafting._pass_or_volunteer", "[(message.pid, Message(Kind.REJECT, message.source, message.seq)), ", "["),
    (drafting, "Drafting._pass_or_volunteer", "(message.pid, Message(Kind.REJECT,", "(message.source, Message(Kind.REJECT,"),
    (drafting, "Drafting._pass_or_volunteer", "if self.state is not State.BUSY or max(", "if max("),
    (drafting, "Drafting.receive", "self.state, self.promise = State.BUSY, None\n                return", "self.state = State.BUSY\n                return"),
    (drafting, "Drafting.receive", "self.state, self.promise = State.BUSY, None\n                return", "return"),
    (drafting, "Drafting._split", "self.state, self.promise = State.BUSY, None\n        self", "self.state = State.BUSY\n        self"),
    (drafting, "Drafting.settle", "if self.state is State.READY_FOR_SPLIT:", "if False:"),
    (drafting, "Drafting._pass_or_volunteer", "mine = message._replace(pid=self.rank, load=load)", "mine = message._replace(load=load)"),
    (drafting, "Drafting._pass_or_volunteer", "if message.pid == NOBODY:\n            return [(self.successor, mine)]", "if message.pid == NOBODY:\n            return []"),
    # drafts
    (drafting, "Drafting._own_draft_is_home", "self.state = State.READY_FOR_ACCEPT", "self.state = State.IDLE"),
    (drafting, "Drafting._own_draft_is_home", "self.state, self.not_before = State.IDLE, now + self.terms.pause.next()", "pass"),
    (drafting, "Drafting._own_draft_is_home", "[(message.pid, Message(Kind.ADMISSION,", "[(self.successor, Message(Kind.ADMISSION,"),
    (drafting, "Drafting._own_draft_is_home", "self.state = State.READY_FOR_ACCEPT\n        return [", "self.state = State.READY_FOR_ACCEPT\n        return [] and ["),
    (drafting, "Drafting.settle", "self.state = State.WAIT_FOR_ACK\n", "pass\n"),
    (drafting, "Drafting._answered", "self.state, self.not_before = State.IDLE, now\n            return", "return"),
    # work
    (drafting, "Drafting._answered", "self.problem.absorb(message.payload)", "pass"),
    (drafting, "Drafting._split", "if part is None:", "if part is not None:"),
    (drafting, "Drafting._split", "Message(Kind.WORK, source, seq, payload=part)", "Message(Kind.WORK, source, seq)"),
    (drafting, "Drafting._split", "return source, Message(Kind.WORK", "return self.successor, Message(Kind.WORK"),
    # Safra's token
    (termination, "Safra.receive", "self.count -= 1\n            self.black = True", "self.count -= 1"),
    (termination, "Safra.receive", "self.count -= 1\n            self.black = True", "self.black = True"),
    (termination, "Safra.receive", "if message.kind in MOVES:", "if False:"),
    (termination, "Safra.sent", "self.count += 1", "pass"),
    (termination, "Safra.settle", "if active or token is None", "if token is None"),
    (termination, "Safra.settle", "Token(token.total + self.count, token.black or self.black)", "Token(token.total, token.black or self.black)"),
    (termination, "Safra.settle", "Token(token.total + self.count, token.black or self.black)", "Token(token.total + self.count, self.black)"),
    (termination, "Safra.settle", "Token(token.total + self.count, token.black or self.black)", "Token(token.total + self.count, token.black)"),
    (termination, "Safra.settle", "Token(token.total + self.count, token.black or self.black)\n", "Token(token.total + self.count, token.black or self.black)\n            self.count = 0\n"),
    (termination, "Safra.settle", "conclusive = not token.black and not self.black and", "conclusive = not self.black and"),
    (termination, "Safra.settle", "conclusive = not token.black and not self.black and", "conclusive = not token.black and"),
    (termination, "Safra.settle", " and token.total + self.count == 0", ""),
    (termination, "Safra.settle", "self.token, self.black = None, False\n", "self.token = None\n"),
    (termination, "Safra.settle", "self.token, self.black = None, False\n", "self.black = False\n"),
    (termination, "Safra.settle", "new = Token(0, False)", "new = Token(self.count, False)"),
    # the two together
    (searcher, "Searcher._settle", "self.termination.settle(self.drafting.load > 0.0,", "self.termination.settle(self.drafting.state == 3,"),
    (searcher, "Searcher._settle", "if message.kind in MOVES:\n", "if message.kind in (Kind.WORK, Kind.NOWORK):\n"),
    (searcher, "Searcher._stop", "for rank in self.termination.below]", "for rank in [*self.termination.below][:1]]"),
    (searcher, "Searcher._finish", "return [(self.termination.above,", "return [] and [(self.termination.above,"),
    (searcher, "Searcher._stop", "self.reason = reason\n", "pass\n"),
    # a problem that raises
    (searcher, "Searcher.turn", "if self.error is not None and not self.over and not self._finished:", "if False:"),
    (searcher, "Searcher.turn", "            if self.over:\n                break\n", "            if self.over or self.error:\n                break\n"),
]  # fmt: skip

BOUND_MUTANTS = [
    # the best value
    (bound, "Bound._adopt", "        if not self._is_better(value, self._best):\n            return False\n", ""),  # a worse value overwrites
    (bound, "Bound._is_better", 'one < other if self.sense == "min" else one > other', "one < other"),  # min and max are mixed up
    (bound, "Bound._is_better", 'one < other if self.sense == "min" else one > other', "one > other"),
    (bound, "Bound._is_better", 'one < other if self.sense == "min" else one > other', 'one <= other if self.sense == "min" else one >= other'),
    (bound, "Bound._adopt", "        self._best = value\n        return True", "        return True"),
    # sending
    (bound, "Sharing.send", "self.known.update(dict.fromkeys(behind, best))", "pass"),  # sent for ever
    (bound, "Sharing.send", "self.known.update(dict.fromkeys(behind, best))", "self.known.update(dict.fromkeys(self.known, WORST[self.bound.sense]))"),
    (bound, "Sharing.send", "for rank in behind]", "for rank in behind[:1]]"),
    (bound, "Sharing.send", "for rank in behind]", "for rank in behind if rank]"),
    (bound, "Sharing.send", "load=best)", "load=round(best) - 1.0)"),  # better than what was found
    (bound, "Sharing.send", "(rank, Message(Kind.BOUND, self.rank,", "(rank, Message(Kind.BOUND, rank,"),
    (bound, "neighbours", "[*([(rank - 1) // FAN_OUT] if rank else []), *below]", "[*below]"),  # never upwards
    (bound, "neighbours", "[*([(rank - 1) // FAN_OUT] if rank else []), *below]", "[(rank + 1) % size] if size > 1 else []"),  # a ring
    # hearing
    (bound, "Sharing.receive", "        self.bound._adopt(value)\n", ""),
    (bound, "Sharing.receive", "if self.bound._is_better(value, self.known[source]):", "if True:"),  # sent back what it was sent
    (bound, "Sharing.receive", "            self.known[source] = value\n", "            pass\n"),  # sent what it has sent
    (bound, "Sharing.level", "        for value in values:\n", "        for value in []:\n"),  # stale after the end
    (searcher, "Searcher._settle", "if self.sharing is None else self.sharing.send()", "if self.sharing is None or not self.drafting.load else self.sharing.send()"),
    (searcher, "Searcher._receive", "            self.sharing.receive(message)\n", "            if self.drafting.load:\n                self.sharing.receive(message)\n"),  # dropped when idle
    (searcher, "Searcher._receive", "            self.sharing.receive(message)\n", "            self.termination.receive(message._replace(kind=Kind.WORK), now)\n            self.sharing.receive(message)\n"),  # counted
    (searcher, "Searcher._settle", "if message.kind in MOVES:\n", "if message.kind in (Kind.WORK, Kind.BOUND):\n"),
]  # fmt: skip

CUT_MUTANTS = [
    # what is counted
    (searcher, "Searcher._settle", "                    self.saves.under_way += 1\n", "                    pass\n"),
    (searcher, "Searcher._receive", "                self.saves.under_way -= 1  # whatever becomes of it\n", "                pass\n"),
    (searcher, "Searcher.job", "not self._ending and not self.paused else None", "not self._ending else None"),
    (searcher, "Searcher.turn", "        if not self.over and not self._ending and not self.paused:\n", "        if not self.over and not self._ending:\n"),
    # states, and what becomes of them
    (searcher, "Searcher._state", "if self._ending or (state := self.attempt(self.problem.save)) is None:", "if (state := self.attempt(self.problem.save) or b'0000') is None:"),
    (searcher, "Searcher._state", "*self.saves.kept, *self.drafting.kept", "*self.saves.kept"),
    (searcher, "Searcher._state", "*self.saves.kept, *self.drafting.kept", "*self.drafting.kept"),
    (searcher, "Searcher._resume", "        self.saves.kept += saved.kept\n", "        pass\n"),
    (searcher, "Searcher._settle", "self.problem.absorb(self.saves.kept.pop(0))", "self.saves.kept.pop(0)"),
    (searcher, "Searcher._resume", "            self.drafting.start()", "            pass"),
    (searcher, "Searcher.done", "return sends + self._finish(reason) if self.saves.stopped else sends", "return sends"),
    # when the time is over
    (searcher, "Searcher._time_out", "        if self.saves is None:\n            return self._finish(Reason.TIMED_OUT)\n", "        return self._finish(Reason.TIMED_OUT)\n"),  # not saved
    (searcher, "Searcher._time_out", "        self._timed_out = not self.saves.stopping\n", ""),  # as if a signal had come
    (searcher, "Searcher._time_out", "        self._timed_out = not self.saves.stopping\n        self.saves.stop()\n", "        self._timed_out = not self.saves.stopping\n"),
    (searcher, "Searcher.turn", "        if now >= self.limit_at and not self.over and not self._ending:\n", "        if False:\n"),
    (saves, "Cut.stopped", "return self.stopping and not self.paused", "return self.stopping"),
    (saves, "Cut.settle", "None if rows is None else sorted(", "[] if rows is None else sorted("),
    # the cut
    (saves, "Cut._report", "            total = self.under_way + sum(self._counted.values())\n", "            total = self.under_way\n"),
    (saves, "Cut._report", "            total = self.under_way + sum(self._counted.values())\n", "            total = sum(self._counted.values())\n"),
    (saves, "Cut._report", "            elif total != self._sent:\n", "            elif self._sent is None:\n"),
    (saves, "Cut._report", "self.state = SaveState.OPENING if total == 0 else SaveState.COUNTING", "self.state = SaveState.OPENING"),
    (saves, "Cut._report", "SaveState.OPENING if total == 0 else", "SaveState.OPENING if total <= 1 else"),
    (saves, "Cut._report", " and len(self._counted) == len(self.below):", " and len(self._counted) >= len(self.below) - 1:"),
    (saves, "Cut._pause", "        self._counted, self._sent = {}, None\n", "        self._sent = None\n"),
    (saves, "Cut._pause", "        self._counted, self._sent = {}, None\n", "        self._counted = {}\n"),
    (saves, "Cut._report", "        elif self.state is SaveState.WRITING and not self._awaited:", "        elif self.state is SaveState.WRITING and self.rank not in self._awaited:"),
    (saves, "Cut._write", "SaveState.WRITING, b\"\", {self.rank, *self.below}", "SaveState.WRITING, b\"\", {*self.below}"),
    (saves, "Cut._add", "None if receipts is None or self.receipts is None else", "b'' if receipts is None or self.receipts is None else"),
    (saves, "Cut._add", "else self.receipts + receipts", "else receipts"),
    (saves, "Cut._go", "        return self._to_below(Kind.GO)\n", "        return []\n"),
    (saves, "Cut._pause", "        return self._to_below(Kind.PAUSE)\n", "        return self._to_below(Kind.PAUSE)[:1]\n"),
    (saves, "Cut.done", "if isinstance(job, Open) and result:", "if isinstance(job, Open):"),
    (saves, "Cut.receive", "(number, self.paused) < (self.number, True)", "False"),
    (saves, "Cut.done", "        self.at = None  #", "        self.at = 0.0  #"),
    (saves, "Cut._report", "if self.above is None else SaveState.WRITTEN", "if self.above is None else SaveState.RUNNING"),
]  # fmt: skip

SCHOLTEN_MUTANTS = [
    (termination, "Scholten.__init__", "self.deficit = len(self.below)", "self.deficit = 0"),
    (termination, "Scholten.__init__", "self.engaged = True\n", "self.engaged = rank == 0\n"),
    (termination, "Scholten.sent", "        self.deficit += 1", "        pass"),
    (termination, "Scholten.receive", "self.deficit -= message.pid", "pass"),
    (termination, "Scholten.receive", "self.deficit -= message.pid", "self.deficit = 0"),
    (termination, "Scholten.receive", "self.deficit -= message.pid", "self.deficit -= 1"),
    (termination, "Scholten.received", "self.owed.get(sender, 0) + 1", "self.owed.get(sender, 0)"),  # never acknowledged
    (termination, "Scholten.received", "self.owed.get(sender, 0) + 1", "1"),
    (termination, "Scholten.received", "self.owed[sender] = self.owed.get(sender, 0) + 1", "self.owed[self.parent] = self.owed.get(self.parent, 0) + 1"),
    (termination, "Scholten.received", "        if self.engaged:\n            self.owed", "        if self.engaged and self.deficit:\n            self.owed"),
    (termination, "Scholten.received", "self.engaged, self.parent = True, sender", "self.parent = sender"),
    (termination, "Scholten.received", "self.engaged, self.parent = True, sender", "self.engaged = True"),
    (termination, "Scholten.received", "self.engaged, self.parent = True, sender", "self.engaged, self.parent, self.owed[sender] = True, sender, 1"),
    (termination, "Scholten.settle", "if active or not self.engaged", "if not self.engaged"),
    (termination, "Scholten.settle", "if active or not self.engaged", "if active"),
    (termination, "Scholten.settle", "if active or not self.engaged", "if active or self.deficit or not self.engaged"),  # two wait for each other
    (termination, "Scholten.settle", "owed, self.owed = self.owed, {}", "owed = self.owed"),  # acknowledged twice
    (termination, "Scholten.settle", "elif self.deficit == 0:", "elif self.deficit <= 1:"),
    (termination, "Scholten.settle", "elif self.deficit == 0:", "else:"),
    (termination, "Scholten.settle", "if self.deficit == 0 and self.rank == 0:", "if self.rank == 0:"),
    (termination, "Scholten.settle", "            self.engaged = False\n", ""),
    (termination, "Scholten.settle", "            owed[self.parent] = owed.get(self.parent, 0) + 1\n", ""),
    (termination, "Scholten.settle", "            owed[self.parent] = owed.get(self.parent, 0) + 1\n", "            owed[self.parent] = 1\n"),
    (termination, "Scholten.settle", "owed[self.parent] = owed.get(self.parent, 0) + 1", "owed[parent(self.rank)] = owed.get(parent(self.rank), 0) + 1"),
    (termination, "Scholten.settle", "            self.over = True\n        elif", "            pass\n        elif"),
    (termination, "Scholten.settle", "pid=n)", "pid=1)"),
]  # fmt: skip

WALK_MUTANTS = [
    # walks
    (walking, "Drafts.serve", "self.walks = self.walks[n_walks:]", "pass"),  # answered twice
    (walking, "Walking._receive_work", "self.out = False\n        self.received", "pass\n        self.received"),  # out for ever
    (walking, "Walking._own_walk_is_home", "self.out = False\n        if self.state", "if self.state"),
    (walking, "Walking._seek", "        if self.out:\n            return []\n", ""),  # two at a time
    (walking, "Walking.settle", "self._next(source) if left > 1 else source", "self._next(source)"),  # never home
    (walking, "Walking.settle", "left - 1, speed)", "left, speed)"),
    (walking, "Walking._next", "to += to >= low", "pass"),  # to itself
    (walking, "Walking.settle", "        self.drafts.walks = []\n", ""),  # sent on, and kept
    (walking, "Walking._own_walk_is_home", "if self.state is State.BUSY:\n            return []\n        self.state", "self.state"),  # asleep with work
    (walking, "Walking.receive", "self.drafts.walks.append(Draft(source, message.seq, left=message.pid, speed=message.load))", "pass"),  # lost
    (walking, "Walking._serve", "Message(Kind.WORK, draft.source, draft.seq,", "Message(Kind.WORK, draft.source, 0,"),  # answered as if it stood
    # drafts that stand
    (walking, "Drafts.serve", "self.standing = self.standing[n - n_walks :]", "pass"),  # kept after it was answered
    (walking, "Drafts.in_order", "[*self.walks, *self.standing]\n", "[*self.walks]\n"),  # never answered
    (walking, "Walking.receive", "self.drafts.standing.append(Draft(source, 0, speed=message.load))", "pass"),  # lost
    (walking, "Walking._own_walk_is_home", " if rank not in self.stood]", "]"),  # a second one
    (walking, "Walking._own_walk_is_home", "self.stood.update(new)", "pass"),
    (walking, "Walking._receive_work", "self.stood.remove(message.pid)", "pass"),
    (walking, "Walking._own_walk_is_home", "load=self.speed)) for rank in new]", "load=self.speed)) for rank in new[:1]]"),
    # ranks that are born asleep
    (walking, "Walking.__init__", "{parent(rank)} if rank else set()", "set()"),
    (walking, "Walking.__init__", "Drafts(born)", "Drafts()"),
    (walking, "Walking.__init__", "children(rank, size)[::-1]]", "children(rank, size)[1:]]"),
    # work
    (walking, "Walking._receive_work", "self.problem.absorb(message.payload)", "pass"),  # to a sleeping rank: lost
    (walking, "Walking._receive_work", "self.kept.append(message.payload)", "pass"),  # to a busy rank: lost
    (walking, "Walking._receive_work", "if self.state is State.BUSY:\n            self.kept", "if False:\n            self.kept"),  # absorbed beside its own
    (walking, "Walking._load", "self.problem.absorb(self.kept.pop(0))", "self.kept.pop(0)"),
    (walking, "Walking._load", "while self.kept and not load > 0.0:", "while False:"),  # idle, with work that was kept
    (walking, "Walking._serve", "self.kept[: len(drafts)], self.kept[len(drafts) :]", "self.kept[: len(drafts)], self.kept"),  # given, and kept
    (walking, "Walking._serve", "payload=part", "payload=parts[0]"),  # one part to all
    (walking, "Walking._serve", "draft.seq, self.rank, payload", "draft.seq, payload"),  # nobody sent it
    (walking, "Walking.settle", "if self.state is State.BUSY and not load > 0.0:", "if False:"),
    # work that belongs to somebody
    (walking, "Walking._own", "self.problem.incoming(payload)", "pass"),  # lost
    (walking, "Walking._own", "        self.state = State.BUSY\n        return []\n", "        return []\n"),  # asleep with work
    (searcher, "Searcher._settle", "        sends += self._owned()\n", ""),  # never sent
    (searcher, "Searcher._settle", "if message.kind in MOVES:\n                self.termination", "if message.kind is Kind.WORK:\n                self.termination"),  # not counted when sent
    (termination, "Scholten.receive", "if message.kind in MOVES:", "if message.kind is Kind.WORK:"),  # not acknowledged
    (searcher, "Searcher._owned", "pid=self.rank, payload=payload)) for to, payload in sends]", "pid=to, payload=payload)) for to, payload in sends]"),  # by nobody
    (searcher, "Searcher._settle", "        sends += self._owned()\n        for", "        sends = self._owned()\n        for"),  # what else there was is lost
    # with the termination
    (searcher, "Searcher._receive", "self.termination.receive(message, now)", "message.kind is Kind.ACK"),
    (searcher, "Searcher._settle", "settle(self.drafting.load > 0.0, now)", "settle(self.drafting.state == 3 and not self.drafting.load > 0.0, now)"),
    (searcher, "Searcher._stop", "for rank in self.termination.below]", "for rank in self.termination.below[1:]]"),  # STOP
    (searcher, "Searcher._receive", "return [] if self._finished else self._finish(", "return [] if self._finished or self.rank else self._finish("),
    (searcher, "Searcher._stop", "for rank in self.termination.below]", "for rank in self.termination.below if not self.rank]"),
]  # fmt: skip
