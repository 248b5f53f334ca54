"""Known-wrong variants of the pool's protocol: (module, what stands there, what the mutant says instead)."""

from lb_mpi.pooling import account, deal, intervals, worker

MUTANTS = [
    # words
    (intervals, "return word - n", "return word - n + 1"),
    (intervals, "return word - n", "return word - n - 1"),
    (intervals, "return word + (n << _BITS)", "return word + (n + 1 << _BITS)"),
    (intervals, "return word + (n << _BITS)", "return word + n"),
    (intervals, "return epoch << 2 * _BITS | lo << _BITS | hi", "return epoch << 2 * _BITS | lo << _BITS | hi + 1"),
    (intervals, "word >> _BITS & _MASK, word & _MASK", "word >> _BITS & MOST, word & (MOST >> 26)"),
    # shares and chunks
    (deal, "return more if end(more) <= end(fewer) else fewer", "return more + 1"),
    (deal, "return more if end(more) <= end(fewer) else fewer", "return -1"),
    (deal, "self.n = fixed or 1", "self.n = fixed"),
    # the map's number
    (worker, "interval.epoch != self.epoch % EPOCHS or ", ""),
    (worker, "return Interval(self.epoch % EPOCHS, lo, hi)", "return Interval(0, lo, hi)"),
    (worker, "return Interval(self.epoch % EPOCHS, lo, hi)", "return Interval(self.epoch, lo, hi)"),
    (worker, "            if current:\n                self._take_given", "            if True:\n                self._take_given"),
    (worker, "if message.kind == StealKind.ASK and current:", "if message.kind == StealKind.ASK:"),
    (worker, "        elif message.kind == StealKind.ASK:\n            self._sends.append((source, StealMessage(StealKind.GIVE, message.epoch)))", "        elif message.kind == StealKind.ASK:\n            pass"),
    (worker, "StealMessage(StealKind.GIVE, message.epoch)", "StealMessage(StealKind.GIVE, self.epoch)"),
    (worker, "        self._given.clear()\n        self._asks", "        self._asks"),
    (worker, "        self._asks.clear()\n        self._hosts.begin", "        self._hosts.begin"),
    (worker, "        self.asked.clear()\n", ""),
    (worker, "        if self.over:\n            return None\n", ""),
    # who fills a word, and with what
    (worker, "self._rest = self._interval(lo, hi)", "self._rest = None"),
    (worker, "        if self._rest is not None:\n            self._rest = None\n        elif self._answering", "        if self._rest is not None:\n            pass\n        elif self._answering"),
    (worker, "            return Swap(self.rank, own, pack(*self._rest))", "            return Swap(self.rank, pack(self.epoch % EPOCHS, 0, 0), pack(*self._rest))"),
    (worker, "            if result:\n", "            if True:\n"),
    (worker, "            if result:\n", "            if not result:\n                self._rest = None\n            else:\n"),
    # stealing
    (worker, "self.chunk = stolen._replace(hi=stolen.lo + begun)", "self.chunk = None"),
    (worker, "        begun = min(self._pace.n, stolen.n)\n        self.chunk = stolen._replace(hi=stolen.lo + begun)\n        self._rest = stolen._replace(lo=stolen.lo + begun) if begun < stolen.n else None", "        self._rest = stolen"),
    (worker, "self._rest = stolen._replace(lo=stolen.lo + begun) if", "self._rest = stolen if"),
    (worker, "self._rest = stolen._replace(lo=stolen.lo + begun) if", "self._rest = stolen._replace(lo=stolen.lo + begun + 1) if"),
    (worker, "if begun < stolen.n else None", "if begun + 1 < stolen.n else None"),
    (worker, "            self._begin_stolen(self._interval(new.hi, old.hi))", "            self._begin_stolen(self._interval(new.hi, old.hi + 1))"),
    (worker, "            self._begin_stolen(self._interval(new.hi, old.hi))", "            self._begin_stolen(self._interval(new.lo, new.hi))"),
    (worker, "best, longest = Swap(rank, word, take_back(word, n)), interval", "best, longest = Swap(rank, word, take_front(word, n)), interval"),
    (worker, "best, longest = Swap(rank, word, take_back(word, n)), interval", "best, longest = Swap(rank, take_back(word, n), word), interval"),
    (worker, "best, longest = Swap(rank, word, take_back(word, n)), interval", "best, longest = Swap(rank, word, word), interval"),
    (worker, "self._interval(old.lo, new.lo)", "self._interval(old.lo, old.lo + 1)"),
    (worker, "self._interval(old.lo, new.lo)", "self._interval(old.lo, old.hi)"),
    (worker, "take_front(own, min(self._pace.n, n))", "take_front(own, self._pace.n)"),
    (worker, "if n := share(interval.n, speed, speeds[rank]):", "if (n := share(interval.n, speed, speeds[rank])) >= 0:"),
    # between hosts
    (worker, "            while self._asks:\n                self._give(0, 0)\n", "            self._asks.clear()\n"),
    (worker, "            while self._asks:\n                self._give(0, 0)\n", "            self._give(0, 0)\n            self._asks.clear()\n"),
    (worker, "            self._give(new.hi, old.hi)\n", "            self._give(old.lo, new.hi)\n"),
    (worker, "            self._give(new.hi, old.hi)\n", "            self._give(0, 0)\n"),
    (worker, "                self._answering = True\n", ""),
    (worker, "        self._answering = False\n        if", "        if"),
    (worker, "self._begin_stolen(self._given.pop(0))", "self._begin_stolen(self._given[0])"),
    (worker, "            self._given.append(self._interval(lo, hi))", "            self._begin_stolen(self._interval(lo, hi))"),
    (worker, "            self._given.append(self._interval(lo, hi))", "            self._given = [self._interval(lo, hi)]"),
    (worker, "        self.asked.remove(source)\n", ""),
    (worker, "                self.asked.add(self._latest)\n", ""),
    (worker, "        self.ready_at = now + self._pause_s\n", ""),
    (worker, "        self._left = self._rng.sample(self._others, len(self._others))\n        return None", "        return None"),
    # the account
    (account, "        if epoch != self.epoch:\n            return False\n", ""),
    (account, "self.missing -= hi - lo", "self.missing -= 1"),
    (account, " or self._done.find(1, lo, hi) >= 0", ""),
    (account, '        self._done[lo:hi] = b"\\1" * (hi - lo)\n', ""),
]  # fmt: skip
