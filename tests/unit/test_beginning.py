"""Who may begin what on the ranks of a pool."""

import pytest

from lb_mpi.pooling.beginning import REASONS, TABLE, Act, PoolState, Wish, act


def test_the_table_answers_every_wish_in_every_state():
    assert set(TABLE) == set(PoolState)
    assert all(len(row) == len(Wish) for row in TABLE.values())
    assert [act(state, wish) for state in PoolState for wish in Wish] == [one for state in PoolState for one in TABLE[state]]


@pytest.mark.parametrize("state", PoolState)
def test_each_refusal_of_a_map_or_a_task_has_a_reason(state):
    assert (state in REASONS) == (Act.REFUSE in TABLE[state][: Wish.CLOSE.value])


def test_a_thread_never_waits_for_what_it_is_in():
    for state in (PoolState.IN_MAP, PoolState.IN_TASKS):
        assert not {Act.WAIT, Act.COMPLETE} & set(TABLE[state])


def test_only_a_map_is_completed_and_only_tasks_are_awaited():
    found = {one: {state for state in PoolState if one in TABLE[state]} for one in (Act.COMPLETE, Act.WAIT)}
    assert found == {Act.COMPLETE: {PoolState.MAP}, Act.WAIT: {PoolState.TASKS, PoolState.ENDING}}


def test_after_a_failure_a_pool_can_only_be_closed():
    assert TABLE[PoolState.UNUSABLE] == (Act.RAISE, Act.RAISE, Act.GO)
