"""The table of the drafting protocol: message in, list of sends out (Xu, Zhang, Sun 1991, rules 1 to 4)."""

import random

import pytest

from lb_mpi.searching.drafting import NOBODY, Drafting, Kind, Message, Pause, ProtocolError, State, Terms
from tests.pile import Pile

ME, NEXT, OTHER = 1, 2, 5


def make(items: int = 0, *, threshold: float = 1.0, once: bool = False) -> Drafting:
    pile = Pile(100)
    drafting = Drafting(ME, NEXT, pile, Terms(threshold, Pause(1e-3, 1e-2, random.Random(0)), once))
    if items:
        pile.items = list(range(items))
        drafting.start()
    return drafting


def draft(source: int, seq: int = 1, pid: int = NOBODY, load: float = 0.0) -> Message:
    return Message(Kind.DRAFTING, source, seq, pid, load)


def promised(items: int = 8) -> Drafting:
    """A busy rank that has volunteered for draft 1 of OTHER."""
    drafting = make(items)
    assert drafting.receive(draft(OTHER), 0.0) == [(NEXT, draft(OTHER, pid=ME, load=float(items)))]
    return drafting


def test_pauses_grow_to_their_bound_and_begin_anew():
    pause = Pause(1.0, 8.0, random.Random(1))
    for length in (1.0, 2.0, 4.0, 8.0, 8.0):
        assert length / 2 <= pause.next() < length
    pause.reset()
    assert pause.next() <= 1.0


def test_no_rank_is_skipped_for_ever():
    """OTHER's token comes by whenever this rank is promised to somebody else; in the end the others must wait for it."""
    drafting = make(8)
    answered = []
    for seq in range(1, 12):
        drafting.receive(draft(7, seq), 0.0)
        if drafting.state is State.WAIT_FOR_ADMISSION:
            answered.append(7)
            drafting.receive(draft(OTHER, seq), 0.0)
            drafting.receive(Message(Kind.REJECT, *drafting.promise), 0.0)
        else:
            drafting.receive(draft(OTHER, seq), 0.0)
            assert drafting.promise == (OTHER, seq)
            break
    assert answered == [7] * 4
    drafting.receive(Message(Kind.ADMISSION, OTHER, seq), 0.0)
    drafting.settle(0.0)
    assert OTHER not in drafting.skipped


def test_dealt_once_a_rank_never_drafts_again():
    drafting = make(once=True)
    assert drafting.settle(0.0) == [(NEXT, draft(ME))]
    drafting.receive(draft(ME, pid=7, load=3.0), 0.0)
    longer = [drafting.terms.pause.next() for _ in range(3)][-1]
    drafting.receive(Message(Kind.WORK, ME, 1, payload=b"\1\0\0\0"), 0.0)
    assert drafting.terms.pause.next() < 1e-3 < longer, "pauses begin anew with work"
    drafting.problem.items.clear()
    assert drafting.settle(99.0) == []
    assert drafting.state is State.IDLE


@pytest.mark.parametrize(("state", "message"), [
    (State.IDLE, draft(ME)),
    (State.BUSY, draft(ME)),
    (State.WAIT_FOR_ACK, draft(ME, 2)),
    (State.WAIT_FOR_ACK, Message(Kind.WORK, ME, 1)),
    (State.READY_FOR_ACCEPT, Message(Kind.WORK, ME, 2)),
    (State.READY_FOR_ACCEPT, Message(Kind.NOWORK, OTHER, 1)),
    (State.WAIT_FOR_ADMISSION, Message(Kind.REJECT, OTHER, 9)),
    (State.WAIT_FOR_ADMISSION, Message(Kind.ADMISSION, 9, 1)),
    (State.BUSY, Message(Kind.ADMISSION, OTHER, 1)),
    (State.READY_FOR_SPLIT, Message(Kind.REJECT, OTHER, 1)),
    (State.BUSY, Message(Kind.TOKEN, OTHER, 1)),
])  # fmt: skip
def test_a_message_outside_the_table_is_a_protocol_error(state, message):
    drafting = make(4)
    drafting.state, drafting.seq, drafting.promise = state, 1, (OTHER, 1)
    with pytest.raises(ProtocolError, match=f"rank 1 in {state.name}"):
        drafting.receive(message, 0.0)
