"""Known-wrong variants of the protocols: (module, what stands there, what the mutant says instead)."""

from lb_mpi.searching import bound, drafting, saves, searcher, termination, walking

MUTANTS = [
    # the holes of the paper
    (drafting, "NOBODY = -1", "NOBODY = 0"),
    (drafting, "Message(Kind.DRAFTING, self.rank, self.seq)", "Message(Kind.DRAFTING, self.rank, self.seq, self.rank)"),
    (drafting, "(State.BUSY, State.WAIT_FOR_ADMISSION):\n            return [(self.successor, message)]", "(State.BUSY, State.WAIT_FOR_ADMISSION):\n            return []"),
    (drafting, "self.state is State.BUSY and not self.load", "self.state in (State.BUSY, State.WAIT_FOR_ADMISSION) and not self.load"),
    # promises
    (drafting, "[(message.pid, Message(Kind.REJECT, message.source, message.seq)), ", "["),
    (drafting, "(message.pid, Message(Kind.REJECT,", "(message.source, Message(Kind.REJECT,"),
    (drafting, "if self.state is not State.BUSY or max(", "if max("),
    (drafting, "self.state, self.promise = State.BUSY, None\n                return", "self.state = State.BUSY\n                return"),
    (drafting, "self.state, self.promise = State.BUSY, None\n                return", "return"),
    (drafting, "self.state, self.promise = State.BUSY, None\n        self", "self.state = State.BUSY\n        self"),
    (drafting, "if self.state is State.READY_FOR_SPLIT:", "if False:"),
    (drafting, "mine = message._replace(pid=self.rank, load=load)", "mine = message._replace(load=load)"),
    (drafting, "if message.pid == NOBODY:\n            return [(self.successor, mine)]", "if message.pid == NOBODY:\n            return []"),
    # drafts
    (drafting, "self.state = State.READY_FOR_ACCEPT", "self.state = State.IDLE"),
    (drafting, "self.state, self.not_before = State.IDLE, now + self.terms.pause.next()", "pass"),
    (drafting, "[(message.pid, Message(Kind.ADMISSION,", "[(self.successor, Message(Kind.ADMISSION,"),
    (drafting, "self.state = State.READY_FOR_ACCEPT\n        return [", "self.state = State.READY_FOR_ACCEPT\n        return [] and ["),
    (drafting, "self.state = State.WAIT_FOR_ACK\n", "pass\n"),
    (drafting, "self.state, self.not_before = State.IDLE, now\n            return", "return"),
    # work
    (drafting, "self.problem.absorb(message.payload)", "pass"),
    (drafting, "if part is None:", "if part is not None:"),
    (drafting, "Message(Kind.WORK, source, seq, payload=part)", "Message(Kind.WORK, source, seq)"),
    (drafting, "return source, Message(Kind.WORK", "return self.successor, Message(Kind.WORK"),
    # Safra's token
    (termination, "self.count -= 1\n        self.black = True", "self.count -= 1"),
    (termination, "self.count -= 1\n        self.black = True", "self.black = True"),
    (termination, "self.count += 1", "pass"),
    (termination, "if active or self.token is None", "if self.token is None"),
    (termination, "token.black or self.black)\n            self.black = False", "token.black or self.black)"),
    (termination, "Token(token.total + self.count, token.black or self.black)", "Token(token.total, token.black or self.black)"),
    (termination, "Token(token.total + self.count, token.black or self.black)", "Token(token.total + self.count, self.black)"),
    (termination, "Token(token.total + self.count, token.black or self.black)", "Token(token.total + self.count, token.black)"),
    (termination, "Token(token.total + self.count, token.black or self.black)\n", "Token(token.total + self.count, token.black or self.black)\n            self.count = 0\n"),
    (termination, "return not token.black and not self.black and", "return not self.black and"),
    (termination, "return not token.black and not self.black and", "return not token.black and"),
    (termination, " and token.total + self.count == 0", ""),
    (termination, "self.token, self.black = None, False\n", "self.token = None\n"),
    (termination, "return Token(0, False)", "return Token(self.count, False)"),
    (termination, "self.token, out = None, Token", "out = Token"),
    # the two together
    (searcher, "self._conclude(self.drafting.load > 0.0,", "self._conclude(self.drafting.state == 3,"),
    (searcher, "self.termination.received()", "pass"),
    (searcher, "if message.kind in MOVES:\n", "if message.kind in (Kind.WORK, Kind.NOWORK):\n"),
    (searcher, "for rank in below]", "for rank in [*below][:1]]"),
    (searcher, "return [(above, Message(Kind.FINISH,", "return [] and [(above, Message(Kind.FINISH,"),
    (searcher, "self.reason = reason\n", "pass\n"),
    # a problem that raises
    (searcher, "if self.error is not None and not self.over and not self._finished:", "if False:"),
    (searcher, "            if self.over:\n                break\n", "            if self.over or self.error:\n                break\n"),
]  # fmt: skip

BOUND_MUTANTS = [
    # the best value
    (bound, "        if not self._is_better(value, self._best):\n            return False\n", ""),  # a worse value overwrites
    (bound, 'one < other if self.sense == "min" else one > other', "one < other"),  # min and max are mixed up
    (bound, 'one < other if self.sense == "min" else one > other', "one > other"),
    (bound, 'one < other if self.sense == "min" else one > other', 'one <= other if self.sense == "min" else one >= other'),
    (bound, "        self._best = value\n        return True", "        return True"),
    # telling
    (bound, "self.known.update(dict.fromkeys(behind, best))", "pass"),  # told for ever
    (bound, "self.known.update(dict.fromkeys(behind, best))", "self.known.update(dict.fromkeys(self.known, WORST[self.bound.sense]))"),
    (bound, "for rank in behind]", "for rank in behind[:1]]"),
    (bound, "for rank in behind]", "for rank in behind if rank]"),
    (bound, "load=best)", "load=round(best) - 1.0)"),  # better than what was found
    (bound, "(rank, Message(Kind.BOUND, self.rank,", "(rank, Message(Kind.BOUND, rank,"),
    (bound, "[*([(rank - 1) // FAN_OUT] if rank else []), *below]", "[*below]"),  # never upwards
    (bound, "[*([(rank - 1) // FAN_OUT] if rank else []), *below]", "[(rank + 1) % size] if size > 1 else []"),  # a ring
    # hearing
    (bound, "        self.bound._take(value)\n\n    def send", "\n    def send"),
    (bound, "if self.bound._is_better(value, self.known[source]):", "if True:"),  # told again what it was told
    (bound, "            self.known[source] = value\n", "            pass\n"),  # told what it has told
    (bound, "        for value in values:\n", "        for value in []:\n"),  # stale after the end
    (searcher, "if self.sharing is None else self.sharing.send()", "if self.sharing is None or not self.drafting.load else self.sharing.send()"),
    (searcher, "            self.sharing.receive(message)\n", "            if self.drafting.load:\n                self.sharing.receive(message)\n"),  # dropped when idle
    (searcher, "            self.sharing.receive(message)\n", "            self.termination.received()\n            self.sharing.receive(message)\n"),  # counted
    (searcher, "if message.kind in MOVES:\n", "if message.kind in (Kind.WORK, Kind.BOUND):\n"),
]  # fmt: skip

CUT_MUTANTS = [
    # what is counted
    (searcher, "                    self.saves.under_way += 1\n", "                    pass\n"),
    (searcher, "                self.saves.under_way -= 1  # whatever becomes of it\n", "                pass\n"),
    (searcher, "not self._ending and not self.paused else None", "not self._ending else None"),
    (searcher, "        if not self.over and not self._ending and not self.paused:\n", "        if not self.over and not self._ending:\n"),
    # states, and what becomes of them
    (searcher, "if self._ending or (state := self.attempt(self.problem.save)) is None:", "if (state := self.attempt(self.problem.save) or b'0000') is None:"),
    (searcher, "*self.saves.kept, *walked", "*self.saves.kept"),
    (searcher, "*self.saves.kept, *walked", "*walked"),
    (searcher, "        self.saves.kept += saved.kept\n", "        pass\n"),
    (searcher, "self.problem.absorb(self.saves.kept.pop(0))", "self.saves.kept.pop(0)"),
    (searcher, "            self.drafting.start()\n\n    def ask_to_stop", "            pass\n\n    def ask_to_stop"),
    (searcher, "return sends + self._finish(reason) if self.saves.stopped else sends", "return sends"),
    # when the time is over
    (searcher, "        if self.saves is None:\n            return self._finish(Reason.TIMED_OUT)\n", "        return self._finish(Reason.TIMED_OUT)\n"),  # not saved
    (searcher, "        self._timed_out = not self.saves.stopping\n", ""),  # as if a signal had come
    (searcher, "        self._timed_out = not self.saves.stopping\n        self.saves.stop()\n", "        self._timed_out = not self.saves.stopping\n"),
    (searcher, "        if now >= self.limit_at and not self.over and not self._ending:\n", "        if False:\n"),
    (saves, "return self.stopping and not self.paused", "return self.stopping"),
    (saves, "None if rows is None else sorted(", "[] if rows is None else sorted("),
    # the cut
    (saves, "            total = self.under_way + sum(self._counted.values())\n", "            total = self.under_way\n"),
    (saves, "            total = self.under_way + sum(self._counted.values())\n", "            total = sum(self._counted.values())\n"),
    (saves, "            elif total != self._sent:\n", "            elif self._sent is None:\n"),
    (saves, "self.state = SaveState.OPENING if total == 0 else SaveState.COUNTING", "self.state = SaveState.OPENING"),
    (saves, "SaveState.OPENING if total == 0 else", "SaveState.OPENING if total <= 1 else"),
    (saves, " and len(self._counted) == len(self.below):", " and len(self._counted) >= len(self.below) - 1:"),
    (saves, "        self._counted, self._sent = {}, None\n", "        self._sent = None\n"),
    (saves, "        self._counted, self._sent = {}, None\n", "        self._counted = {}\n"),
    (saves, "        elif self.state is SaveState.WRITING and not self._awaited:", "        elif self.state is SaveState.WRITING and self.rank not in self._awaited:"),
    (saves, "SaveState.WRITING, b\"\", {self.rank, *self.below}", "SaveState.WRITING, b\"\", {*self.below}"),
    (saves, "None if receipts is None or self.receipts is None else", "b'' if receipts is None or self.receipts is None else"),
    (saves, "else self.receipts + receipts", "else receipts"),
    (saves, "        return self._to_below(Kind.GO)\n", "        return []\n"),
    (saves, "        return self._to_below(Kind.PAUSE)\n", "        return self._to_below(Kind.PAUSE)[:1]\n"),
    (saves, "if isinstance(job, Open) and result:", "if isinstance(job, Open):"),
    (saves, "(number, self.paused) < (self.number, True)", "False"),
    (saves, "        self.at = now + self.every_s  #", "        #"),
    (saves, "if self.above is None else SaveState.WRITTEN", "if self.above is None else SaveState.RUNNING"),
]  # fmt: skip

SCHOLTEN_MUTANTS = [
    ("self.deficit = len(children(rank, size))", "self.deficit = 0"),
    ("self.engaged = True\n", "self.engaged = rank == 0\n"),
    ("        self.deficit += 1", "        pass"),
    ("        self.deficit -= n", "        pass"),
    ("        self.deficit -= n", "        self.deficit = 0"),
    ("        self.deficit -= n", "        self.deficit -= 1"),
    ("self.owed.get(sender, 0) + 1", "self.owed.get(sender, 0)"),  # never acknowledged
    ("self.owed.get(sender, 0) + 1", "1"),
    ("self.owed[sender] = self.owed.get(sender, 0) + 1", "self.owed[self.parent] = self.owed.get(self.parent, 0) + 1"),
    ("        if self.engaged:\n            self.owed", "        if self.engaged and self.deficit:\n            self.owed"),
    ("self.engaged, self.parent = True, sender", "self.parent = sender"),
    ("self.engaged, self.parent = True, sender", "self.engaged = True"),
    ("self.engaged, self.parent = True, sender", "self.engaged, self.parent, self.owed[sender] = True, sender, 1"),
    ("if active or not self.engaged", "if not self.engaged"),
    ("if active or not self.engaged", "if active"),
    ("if active or not self.engaged", "if active or self.deficit or not self.engaged"),  # two wait for each other
    ("owed, self.owed = self.owed, {}", "owed = self.owed"),  # acknowledged twice
    ("elif self.deficit == 0:", "elif self.deficit <= 1:"),
    ("elif self.deficit == 0:", "else:"),
    ("if self.deficit == 0 and self.rank == 0:", "if self.rank == 0:"),
    ("            self.engaged = False\n", ""),
    ("            owed[self.parent] = owed.get(self.parent, 0) + 1\n", ""),
    ("            owed[self.parent] = owed.get(self.parent, 0) + 1\n", "            owed[self.parent] = 1\n"),
    ("owed[self.parent] = owed.get(self.parent, 0) + 1", "owed[parent(self.rank)] = owed.get(parent(self.rank), 0) + 1"),
    ("            self.over = True\n        elif", "            pass\n        elif"),
    ("pid=n)", "pid=1)"),
]  # fmt: skip

WALK_MUTANTS = [
    # walks
    (walking, "self.walks = self.walks[n_walks:]", "pass"),  # answered twice
    (walking, "self.out = False\n        self.received", "pass\n        self.received"),  # out for ever
    (walking, "self.out = False\n        if self.state", "if self.state"),
    (walking, "        if self.out:\n            return []\n", ""),  # two at a time
    (walking, "self._next(source) if left > 1 else source", "self._next(source)"),  # never home
    (walking, "left - 1, speed)", "left, speed)"),
    (walking, "to += to >= low", "pass"),  # to itself
    (walking, "        self.drafts.walks = []\n", ""),  # sent on, and kept
    (walking, "if self.state is State.BUSY:\n            return []\n        self.state", "self.state"),  # asleep with work
    (walking, "self.drafts.walks.append(Draft(source, message.seq, left=message.pid, speed=message.load))", "pass"),  # lost
    (walking, "Message(Kind.WORK, draft.source, draft.seq,", "Message(Kind.WORK, draft.source, 0,"),  # answered as if it stood
    # drafts that stand
    (walking, "self.standing = self.standing[n - n_walks :]", "pass"),  # kept after it was answered
    (walking, "[*self.walks, *self.standing]\n", "[*self.walks]\n"),  # never answered
    (walking, "self.drafts.standing.append(Draft(source, 0, speed=message.load))", "pass"),  # lost
    (walking, " if rank not in self.stood]", "]"),  # a second one
    (walking, "self.stood.update(new)", "pass"),
    (walking, "self.stood.remove(message.pid)", "pass"),
    (walking, "load=self.speed)) for rank in new]", "load=self.speed)) for rank in new[:1]]"),
    # ranks that are born asleep
    (walking, "{parent(rank)} if rank else set()", "set()"),
    (walking, "Drafts(born)", "Drafts()"),
    (walking, "children(rank, size)[::-1]]", "children(rank, size)[1:]]"),
    # work
    (walking, "self.problem.absorb(message.payload)", "pass"),  # to a sleeping rank: lost
    (walking, "self.kept.append(message.payload)", "pass"),  # to a busy rank: lost
    (walking, "if self.state is State.BUSY:\n            self.kept", "if False:\n            self.kept"),  # absorbed beside its own
    (walking, "self.problem.absorb(self.kept.pop(0))", "self.kept.pop(0)"),
    (walking, "while self.kept and not load > 0.0:", "while False:"),  # idle, with work that was kept
    (walking, "self.kept[: len(drafts)], self.kept[len(drafts) :]", "self.kept[: len(drafts)], self.kept"),  # given, and kept
    (walking, "payload=part", "payload=parts[0]"),  # one part to all
    (walking, "draft.seq, self.rank, payload", "draft.seq, payload"),  # nobody sent it
    (walking, "if self.state is State.BUSY and not load > 0.0:", "if False:"),
    # work that belongs to somebody
    (walking, "self.problem.incoming(payload)", "pass"),  # lost
    (walking, "        self.state = State.BUSY\n        return []\n\n    def _own_walk", "        return []\n\n    def _own_walk"),  # asleep with work
    (searcher, "        sends += self._owned()\n", ""),  # never sent
    (searcher, "if message.kind in MOVES:\n                self.termination", "if message.kind is Kind.WORK:\n                self.termination"),  # not counted when sent
    (searcher, "elif kind in MOVES:", "elif kind is Kind.WORK:"),  # not acknowledged
    (searcher, "pid=self.rank, payload=payload)) for to, payload in sends]", "pid=to, payload=payload)) for to, payload in sends]"),  # by nobody
    (searcher, "        sends += self._owned()\n        for", "        sends = self._owned()\n        for"),  # what else there was is lost
    # with the termination
    (searcher, "            self.termination.acknowledged(message.pid)\n", ""),
    (searcher, "self.termination.received(message.pid)", "pass"),
    (searcher, "return self.termination.settle(active)", "return self.termination.settle(self.drafting.state == 3 and not active)"),
    (searcher, "below = children(self.rank, self.size) if", "below = children(self.rank, self.size)[1:] if"),  # STOP
    (searcher, "return [] if self._finished else self._finish(", "return [] if self._finished or self.rank else self._finish("),
    (searcher, "for rank in below]", "for rank in below if not self.rank]"),
]  # fmt: skip
