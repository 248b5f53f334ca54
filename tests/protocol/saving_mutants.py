"""Known-wrong variants of the folder of saves, and of rows in it: (what stands there, what the mutant says instead)."""

MUTANTS = [
    # before the commit
    ("name, measured())", "name, measured(), synced=False)"),
    ("frame(packed)])", "frame(packed)], synced=False)"),
    ("        self._disk.sync_dir(place)\n        self._disk.rename(place / DRAFT, place / MANIFEST)\n", "        self._disk.rename(place / DRAFT, place / MANIFEST)\n"),
    ("self._disk.write(place / DRAFT,", "self._disk.write(place / MANIFEST,"),
    ("        if self._place(number).name in self._disk.names(self.path):\n            self._remove(number)\n", ""),
    # the commit
    ("        self._disk.rename(place / DRAFT, place / MANIFEST)\n        self._disk.sync_dir(place)\n", "        self._disk.rename(place / DRAFT, place / MANIFEST)\n"),
    ("        self._disk.rename(place / DRAFT, place / MANIFEST)\n", ""),
    ("[list(part) for part in parts]", "[list(part) for part in parts[:-1]]"),
    ("[self.kind, number, meta,", "[self.kind, number - 1, meta,"),
    # what goes
    ("        place = self._place(number)\n        packed", "        for other in self._numbers():\n            if other != number:\n                self._remove(other)\n        place = self._place(number)\n        packed"),
    ("self._trusted()[:KEPT]", "self._trusted()[:1]"),
    ("self._trusted()[:KEPT]", "self._trusted()[1:]"),
    ("self._trusted()[:KEPT]", "self._trusted()"),
    ("self._trusted()[:KEPT]", "self.saves().whole[:KEPT]"),
    ("in set(self._numbers()) - kept:", "in {saved.number for saved in self._trusted()} - kept:"),
    ("            self._disk.remove(place / MANIFEST)\n            self._disk.sync_dir(place)\n", "            self._disk.remove(place / MANIFEST)\n"),
    ("            if name != MANIFEST:\n                self._disk.remove(place / name)\n        self._disk.remove_dir(place)", "            self._disk.remove(place / name)\n        self._disk.remove_dir(place)"),
    ("        if MANIFEST in names:\n            self._disk.remove(place / MANIFEST)\n            self._disk.sync_dir(place)\n        for name in names:\n            if name != MANIFEST:\n", "        for name in sorted(names, reverse=True):\n            if True:\n"),
    ("            if MANIFEST not in self._disk.names(self._place(number), own=True):\n                self._remove(number)", "            self._remove(number)"),
    # which one is read
    ("reverse=True", "reverse=False"),
    ("            if MANIFEST in self._disk.names(self._place(number), own=True):\n                try:", "            if {MANIFEST, DRAFT} & {*self._disk.names(self._place(number), own=True)}:\n                try:"),
    ("        if wrong:\n            raise", "        if not wrong:\n            raise"),
    ("        if wrong:\n            raise", "        if False:\n            raise"),
    ("                self._distrusted.add(saved.number)\n", ""),
    ("        wrong = list(saves.damaged)", "        wrong: list[str] = []"),
    ("        self._distrusted.discard(number)\n", ""),
    ("        if number <= newest:", "        if number < newest:"),
    ("        if number <= newest:", "        if False:"),
    # what is trusted
    ("if crc != part.crc:", "if False:"),
    ("zlib.crc32(chunk, crc)\n        except", "zlib.crc32(chunk)\n        except"),
    ("if payload is None or end != len(view):", "if payload is None:\n            payload, end = view[at + 12 :], len(view)\n        if False:"),
    ("        start, at = read_frame(view, 0)\n", "        start, at = view[12:20], 20\n"),
    ("        if found != number:", "        if False:"),
    ("        if kind != self.kind:", "        if False:"),
    ("!= VERSION:", "< VERSION:"),
    ("        except OSError as error:\n            raise SaveError(f\"{path}: can't be read ({error.strerror or error})\") from None\n        if at", "        except ZeroDivisionError:\n            raise\n        if at"),
    ("max(begin - at, 0)", "begin"),
    ("max(end - at, 0)", "end"),
]  # fmt: skip

ROW_MUTANTS = [
    # what is written
    ("np.ascontiguousarray(array)", "np.asarray(array)"),
    ("        yield array.reshape(-1)", "        yield array[:-1].reshape(-1)"),
    ("    yield header.getvalue()\n", ""),
    ('f"{name}-{rank:04d}.npy"', 'f"{name}-{rank % 2:04d}.npy"'),
    ('"rows": list(rows),', '"rows": sorted(rows),'),
    ('"rows": list(rows),', '"rows": list(rows)[:1],'),
    # what is read
    ("max(begin, offset)", "begin"),
    ("min(end, offset + rows)", "end"),
    ("min(end, offset + rows)", "min(end, offset + rows) - 1"),
    ("        if first < last:\n", "        if first <= last - 2:\n"),
    ("(offset + rows - first) * row_bytes", "(rows - first) * row_bytes"),
    ("(offset + rows - first) * row_bytes", "rows * row_bytes"),
    ("found[first - begin : last - begin]", "found[first - offset : last - offset]"),
    ("        offset += rows\n", "        offset = rows\n"),
    ("math.prod(like.shape[1:])", "len(like.shape)"),
    # what is refused
    ("        if len(array) != rows:", "        if len(array) < rows:"),
    ("_NAME.fullmatch(name)", "_NAME.search(name)"),
    ("        if array.dtype.hasobject:", "        if False:"),
    ("        if array.ndim < 1:", "        if False:"),
    ("    for name in sorted({*before, *options}):", "    for name in sorted(options):"),
    ("    for name in sorted({*before, *options}):", "    for name in sorted(before):"),
    ("or differ(before[name], options[name]):", "or False:"),
]
