"""Known-wrong variants of the folder of saves, and of rows in it: (function, what stands there, what the mutant says instead)."""

MUTANTS = [
    # before the commit
    ("Folder.write", "name, measured())", "name, measured(), synced=False)"),
    ("Folder.commit", "frame(packed)])", "frame(packed)], synced=False)"),
    ("Folder.commit", "        self._disk.sync_dir(path)\n        self._disk.rename(path / DRAFT, path / MANIFEST)\n", "        self._disk.rename(path / DRAFT, path / MANIFEST)\n"),
    ("Folder.commit", "self._disk.write(path / DRAFT,", "self._disk.write(path / MANIFEST,"),
    ("Folder.begin", "        if self._path_of(number).name in self._disk.names(self.path):\n            self._remove(number)\n", ""),
    # the commit
    ("Folder.commit", "            self._disk.sync_dir(path)\n        except", "            pass\n        except"),
    ("Folder.commit", "                self._disk.remove(path / MANIFEST)\n", "                pass\n"),
    ("Folder.commit", "        self._disk.rename(path / DRAFT, path / MANIFEST)\n", ""),
    ("Folder.commit", "[list(part) for part in parts]", "[list(part) for part in parts[:-1]]"),
    ("Folder.commit", "[self.kind, number, meta,", "[self.kind, number - 1, meta,"),
    # what goes
    ("Folder.commit", "        path = self._path_of(number)\n        packed", "        for other in self._numbers():\n            if other != number:\n                self._remove(other)\n        path = self._path_of(number)\n        packed"),
    ("Folder.commit", "self._trusted()[: KEPT - 1]", "self._trusted()[:0]"),
    ("Folder.commit", "self._trusted()[: KEPT - 1]", "self._trusted()[1:]"),
    ("Folder.commit", "self._trusted()[: KEPT - 1]", "self._trusted()"),
    ("Folder.commit", "self._trusted()[: KEPT - 1]", "self.saves().whole[: KEPT - 1]"),
    ("Folder.commit", "set(self._numbers()) - kept", "{saved.number for saved in self._trusted()} - kept"),
    ("Folder._remove", "        self._disk.sync_dir(path)  #", "        #"),
    ("Folder._remove", "        self._disk.sync_dir(path)  #", "            self._disk.sync_dir(path)  #"),
    ("Folder._remove", "            if name != MANIFEST:\n                self._disk.remove(path / name)\n        self._disk.remove_dir(path)", "            self._disk.remove(path / name)\n        self._disk.remove_dir(path)"),
    ("Folder._remove", "        if MANIFEST in names:\n            self._disk.remove(path / MANIFEST)\n        self._disk.sync_dir(path)  # also if it was removed after an error\n        for name in names:\n            if name != MANIFEST:\n", "        for name in sorted(names, reverse=True):\n            if True:\n"),
    ("Folder.discard", "            if MANIFEST not in self._disk.names(self._path_of(number), own=True):\n                self._remove(number)", "            self._remove(number)"),
    # which one is read
    ("Folder._numbers", "reverse=True", "reverse=False"),
    ("Folder.saves", "            if MANIFEST in names:\n", "            if {MANIFEST, DRAFT} & {*names}:\n"),
    ("Folder.saves", "                incomplete.append(", "                damaged.append("),
    ("Folder.newest", "[*saves.incomplete, *wrong]", "wrong"),
    ("Folder.newest", "        if wrong:\n            raise", "        if not wrong:\n            raise"),
    ("Folder.newest", "        if wrong:\n            raise", "        if False:\n            raise"),
    ("Folder.newest", "                self._distrusted.add(saved.number)\n", ""),
    ("Folder.newest", "        wrong = list(saves.damaged)", "        wrong: list[str] = []"),
    ("Folder.begin", "        self._distrusted.discard(number)\n", ""),
    ("Folder.begin", "        if number <= newest:", "        if number < newest:"),
    ("Folder.begin", "        if number <= newest:", "        if False:"),
    # what is trusted
    ("Folder.read", "if crc != part.crc:", "if False:"),
    ("Folder.read", "zlib.crc32(chunk, crc)\n        except", "zlib.crc32(chunk)\n        except"),
    ("Folder._manifest", "if payload is None or end != len(view):", "if payload is None:\n            payload, end = view[at + 12 :], len(view)\n        if False:"),
    ("Folder._manifest", "        start, at = read_frame(view, 0)\n", "        start, at = view[12:20], 20\n"),
    ("Folder._manifest", "        if found != number:", "        if False:"),
    ("Folder._manifest", "        if kind != self.kind:", "        if False:"),
    ("Folder._manifest", "!= VERSION:", "< VERSION:"),
    ("Folder.read", "        except OSError as error:\n            raise SaveError(f\"{path}: can't be read ({error.strerror or error})\") from None\n        if at", "        except ZeroDivisionError:\n            raise\n        if at"),
    ("Folder.read", "max(begin - at, 0)", "begin"),
    ("Folder.read", "max(end - at, 0)", "end"),
]  # fmt: skip

ROW_MUTANTS = [
    # what is written
    ("npy", "np.ascontiguousarray(array)", "np.asarray(array)"),
    ("npy", "        yield array.reshape(-1)", "        yield array[:-1].reshape(-1)"),
    ("npy", "    yield header.getvalue()\n", ""),
    ("_file", 'f"{name}-{rank:04d}.npy"', 'f"{name}-{rank % 2:04d}.npy"'),
    ("describe_rows", '"rows": list(rows),', '"rows": sorted(rows),'),
    ("describe_rows", '"rows": list(rows),', '"rows": list(rows)[:1],'),
    # what is read
    ("_read", "max(begin, offset)", "begin"),
    ("_read", "min(end, offset + rows)", "end"),
    ("_read", "min(end, offset + rows)", "min(end, offset + rows) - 1"),
    ("_read", "        if first < last:\n", "        if first <= last - 2:\n"),
    ("_read", "(offset + rows - first) * row_bytes", "(rows - first) * row_bytes"),
    ("_read", "(offset + rows - first) * row_bytes", "rows * row_bytes"),
    ("_read", "found[first - begin : last - begin]", "found[first - offset : last - offset]"),
    ("_read", "        offset += rows\n", "        offset = rows\n"),
    ("_read", "math.prod(like.shape[1:])", "len(like.shape)"),
    # what is refused
    ("check_arrays", "_NAME.fullmatch(name)", "_NAME.search(name)"),
    ("compare_options", "    for name in sorted({*before, *options}):", "    for name in sorted(options):"),
    ("compare_options", "    for name in sorted({*before, *options}):", "    for name in sorted(before):"),
    ("compare_options", "or differ(before[name], options[name]):", "or False:"),
]
