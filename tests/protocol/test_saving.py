"""The folder of saves, on a disk that dies at any operation: what is read is the newest committed save, whole."""

import contextlib
import itertools
import random
import struct
from functools import partial
from pathlib import Path

import pytest

from lb_mpi.errors import SaveError
from lb_mpi.files import frame
from lb_mpi.saving import folder as real
from lb_mpi.saving.folder import Folder
from tests.protocol.memory_disk import Died, MemoryDisk
from tests.protocol.mutate import rejects
from tests.protocol.saving_mutants import MUTANTS

ROOT = Path("/runs/saves")
RANKS = 2
attempts = itertools.count(1)


class Run:
    """A run that saves at each step, as `lb_mpi.save` does, and goes on from what it finds.  The number of
    the attempt distinguishes each save from all others, of the same step, too.
    """

    def __init__(self, disk: MemoryDisk) -> None:
        self.folder = Folder(ROOT, "rows", disk)
        self.begun = self.committed = -1

    def load(self) -> tuple[int, list[str]]:
        """The step that was found (-1: none), and what was wrong with newer ones."""
        found, wrong = self.folder.newest(self.folder.saves(), self._read)
        return (-1 if found is None else found), wrong

    def _read(self, saved: real.Saved) -> int:
        attempt = saved.meta["attempt"]
        assert list(saved.parts) == [f"rank-{rank}.npy" for rank in range(RANKS)]
        for rank, name in enumerate(saved.parts):
            content = b"".join(contents(saved.number, rank, attempt))
            assert self.folder.read(saved, name) == content, "a mixture"
            assert self.folder.read(saved, name, 3, 8) == content[3:8]
        return saved.number

    def save(self, number: int) -> None:
        attempt = next(attempts)
        self.folder.begin(number)
        self.begun = number
        parts = [
            self.folder.write(number, f"rank-{rank}.npy", contents(number, rank, attempt)) for rank in range(RANKS)
        ]
        self.folder.commit(number, {"attempt": attempt}, parts)
        self.committed = number
        assert len(self.folder.saves().whole) <= 2 or self.folder._disk.failing

    def go_on(self, upto: int, every: int = 1) -> None:
        self.folder.lock()
        found, wrong = self.load()
        assert only_incomplete(wrong)
        self.begun = self.committed = found
        for number in range(found + every, upto + 1, every):
            self.save(number)


def only_incomplete(wrong: list[str]) -> bool:
    return all(text.endswith("incomplete, without a manifest") for text in wrong)


def contents(number: int, rank: int, attempt: int) -> list[bytes]:
    return [f"{number} of rank {rank}, ".encode(), b"x" * (attempt % 7), f"attempt {attempt}".encode()]


def check_deaths(*, n_more: int) -> None:
    """Death at each operation of three saves, then of what goes on from there (`n_more` of those deaths, at random)."""
    chance = random.Random(1)
    whole = MemoryDisk()
    Run(whole).go_on(2)
    for at in range(whole.steps + 1):
        for survives in (1.0, 0.0, *[0.5] * 3):
            disk = die(MemoryDisk(at), 2, survives, chance)
            for _ in range(n_more):
                again = disk.after_death(chance, 1.0)
                again.dies_at = chance.randrange(40)
                die(again, 4, chance.choice((1.0, 0.0, 0.5)), chance)
            Run(disk).go_on(4)
            assert Run(disk).load() == (4, [])


def die(disk: MemoryDisk, upto: int, survives: float, chance: random.Random) -> MemoryDisk:
    """Run until the disk dies, or to the end; what is left has the law, and is returned."""
    before = Run(disk.after_death(chance, 1.0)).load()[0]
    run = Run(disk)
    with contextlib.suppress(Died):
        run.go_on(upto)
    left = disk.after_death(chance, survives)
    after = Run(left)
    found, wrong = after.load()
    assert only_incomplete(wrong), "a manifest without its parts"
    for saved in after.folder.saves().whole:  # what is half removed is none
        after._read(saved)
    assert max(run.committed, before) <= found <= max(run.begun, before)
    return left


def check_errors() -> None:
    """After an error of the disk, or several, there is no such save: it can be made again; and deaths do no harm."""
    chance = random.Random(1)
    whole = MemoryDisk()
    Run(whole).go_on(3)
    for at, n in itertools.product(range(1, whole.steps + 1), (1, 2, 100)):
        disk = MemoryDisk(failing=range(at, at + n))
        run = Run(disk)
        with contextlib.suppress(OSError):
            run.folder.lock()
        for number in range(4):
            try:
                run.save(number)
            except OSError:
                run.folder.discard(number)
                assert n > 1 or run.load()[0] == number - 1, "an error, but a save"
                for survives in [0.5] * (8 if n == 1 else 1):
                    left = Run(disk.after_death(chance, survives))
                    assert only_incomplete(left.load()[1]), "a manifest without its parts"
                    assert left.load()[0] in (run.committed, number)
                disk.failing = range(0)
                if run.load()[0] < number:
                    run.save(number)
        disk.failing = range(0)
        assert Run(disk).load() == (3, [])


def check_damage() -> None:
    """What is flipped, torn or lost costs one save, and the next saves are as good as any."""
    chance = random.Random(1)
    for how, name in itertools.product(("flip", "tear", "lose"), ("rank-0.npy", "rank-1.npy", "manifest")):
        for every in (1, 2):
            disk = MemoryDisk()
            Run(disk).go_on(3)
            newest = ROOT / "save-00000003"
            disk.damage(newest / name, how, chance)
            run = Run(disk)
            found, wrong = run.load()
            assert found == 2
            assert len(wrong) == 1
            assert all("save-00000003" in text for text in wrong)
            run.save(2 + every)  # in its place, or after it
            disk.damage(ROOT / f"save-{2 + every:08d}" / "rank-0.npy", "tear", chance)
            again = Run(disk)
            assert again.load()[0] == 2
            for more in (2, 3):  # one that was damaged, saved again, is as good as any
                again.save(more + every)
            assert [saved.number for saved in again.folder.saves().whole] == [3 + every, 2 + every]
            disk.damage(ROOT / f"save-{3 + every:08d}" / "rank-0.npy", "tear", chance)
            disk.damage(ROOT / f"save-{2 + every:08d}" / "rank-0.npy", "lose", chance)
            with pytest.raises(SaveError, match=r"no save in .* can be read: .*truncated; .*can't be read"):
                Run(disk).load()


def check_words() -> None:
    """What is refused, and what stays as it is then."""
    disk = MemoryDisk()
    run = Run(disk)
    assert run.load() == (-1, [])
    run.go_on(2)
    for number in (1, 2):
        with pytest.raises(ValueError, match=f"step = {number}: expected more than 2, which is saved in /runs/saves"):
            run.folder.begin(number)
    run.folder.discard(2)  # it's committed
    assert Run(disk).load() == (2, [])
    run.folder.begin(5)
    run.folder.write(5, "rank-0.npy", [b"abc"])
    with pytest.raises(FileExistsError):
        run.folder.write(5, "rank-0.npy", [b"abc"])
    run.folder.discard(5)
    assert disk.names(ROOT) == ["save-00000001", "save-00000002"]
    with pytest.raises(ValueError, match="manifest is a save of rows: expected a save of search"):
        Folder(ROOT, "search", disk).saves()
    newest = disk._at(ROOT / "save-00000002" / "manifest")
    whole = newest.data
    for at in range(20):  # its magic and its version, too, may be flipped
        newest.data = whole[:at] + bytes([whole[at] ^ 8]) + whole[at + 1 :]
        step, wrong = Run(disk).load()
        assert (step, wrong) == (1, ["/runs/saves/save-00000002/manifest: not a manifest of a save, or corrupt"])
    newest.data = whole[:20] + frame(b"\x93\x01")  # a CRC that matches
    step, wrong = Run(disk).load()
    assert step == 1
    assert wrong[0].startswith("/runs/saves/save-00000002/manifest: not the manifest of a save (")
    newest.data = whole
    moved = disk._at(ROOT / "save-00000001" / "manifest")
    disk._at(ROOT / "save-00000002").now["manifest"] = moved
    assert run.load() == (1, ["/runs/saves/save-00000002/manifest: belongs to save 1"])
    moved.data = frame(struct.pack("<6sH", b"lbsave", 3)) + moved.data[20:]
    with pytest.raises(ValueError, match="manifest has version 3 of the format: expected 2"):
        run.load()


@pytest.mark.parametrize("check", [check_words, check_damage, partial(check_deaths, n_more=2), check_errors])
def test_what_is_read_is_the_newest_committed_save_and_refusals_say_what_was_expected(check):
    check()


def find_fault() -> None:
    check_words()
    check_damage()
    check_errors()
    check_deaths(n_more=1)


test_known_wrong_variants_are_caught = rejects(find_fault, [(real, *one) for one in MUTANTS], Exception, right=False)


def test_a_real_disk_keeps_two_saves_and_a_lock(tmp_path):
    folder = Folder(tmp_path / "new" / "saves", "rows")
    assert folder.saves() == ([], [], [])
    folder.lock()
    folder.lock()  # it has it
    with pytest.raises(OSError, match=r"another run saves to .*saves"):
        Folder(tmp_path / "new" / "saves", "rows").lock()
    for number in range(4):
        folder.begin(number)
        parts = [folder.write(number, "a", [b"one", memoryview(b"two")]), folder.write(number, "b", [])]
        folder.commit(number, {"numbers": [1, 2.5], "none": None}, parts)
    assert sorted(path.name for path in folder.path.iterdir()) == ["lock", "save-00000002", "save-00000003"]
    saved = folder.saves().whole[0]
    assert saved.meta == {"numbers": [1, 2.5], "none": None}
    assert (folder.read(saved, "a"), folder.read(saved, "a", 2, 4), folder.read(saved, "b")) == (b"onetwo", b"et", b"")
    folder.path.rename(tmp_path / "old")
    folder.begin(0)  # in a new folder, which is locked, too
    again = Folder(folder.path, "rows")
    with pytest.raises(OSError, match="another run saves to"):
        again.lock()
    folder.close()
    again.lock()
    again.close()


def test_a_full_disk_leaves_what_was_saved(tmp_path):
    folder = Folder(tmp_path, "rows")
    folder.begin(1)
    folder.commit(1, {}, [folder.write(1, "a", [b"one"])])
    folder.begin(2)
    (tmp_path / "save-00000002" / "manifest.new").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"manifest\.new"):
        folder.commit(2, {}, [folder.write(2, "a", [b"two"])])
    folder.discard(2)
    assert [saved.number for saved in folder.saves().whole] == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["save-00000001"]


def test_a_file_named_like_a_save_is_none(tmp_path):
    folder = Folder(tmp_path, "rows")
    folder.begin(3)
    folder.commit(3, {}, [folder.write(3, "part", [b"rows"])])
    (tmp_path / "save-00000012").write_text("no folder")
    assert [saved.number for saved in folder.saves().whole] == [3]
    with pytest.raises(NotADirectoryError, match="save-00000012"):
        folder.begin(12)
    folder.begin(13)
    folder.commit(13, {}, [folder.write(13, "part", [b"rows"])])
    assert (tmp_path / "save-00000012").read_text() == "no folder"
