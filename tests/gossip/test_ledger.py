import json

import pytest

from gossip.transport.ledger import CONTROL, Ledger


def leave(leaving: Ledger, rank: int, staying: Ledger, me: int) -> None:
    """`leaving`, of `rank`, sends its last words to `staying`, of rank `me`."""
    staying.hear(rank, json.loads(json.dumps(leaving.words_for(me))))


def test_who_has_left_is_undecided_until_all_it_sent_is_here() -> None:
    a, b = Ledger(), Ledger()
    a.posted[1][7] += 2
    b.expected[0][7] += 1
    leave(a, 0, b, 1)
    for received in range(2):
        assert list(b.decide()) == [] and b.left == {0}, received
        b.received[0][7] += 1
    assert list(b.decide()) == [0]
    assert list(b.decide()) == [], "each once"


@pytest.mark.parametrize("tag", [7, 8])
def test_what_will_never_come_decides_at_once(tag: int) -> None:
    a, b = Ledger(), Ledger()
    a.posted[1][7] += 1
    b.expected[0][tag] += 2
    leave(a, 0, b, 1)
    assert list(b.decide()) == [0]


def test_messages_to_another_rank_are_no_words_to_this_one() -> None:
    a, b = Ledger(), Ledger()
    a.posted[2][7] += 1
    leave(a, 0, b, 1)
    assert list(b.decide()) == [0]


def test_a_mean_that_both_have_started_is_waited_for_and_a_later_one_is_not() -> None:
    a, b = Ledger(), Ledger()
    a.started[3] += 1
    b.started[3] += 1
    leave(a, 0, b, 1)
    assert list(b.decide()) == [] and b.absent(3, 1) == []
    b.completed[3] += 1
    assert list(b.decide()) == [0]

    c = Ledger()
    c.started[3] += 2
    leave(a, 0, c, 1)
    assert list(c.decide()) == [0] and c.absent(3, 2) == [0]


def test_the_control_plane_says_who_is_absent_and_decides_nothing() -> None:
    a, b = Ledger(), Ledger()
    a.started[CONTROL] += 1
    b.started[CONTROL] += 2
    leave(a, 0, b, 1)
    assert list(b.decide()) == [0]
    assert b.absent(CONTROL, 1) == [] and b.absent(CONTROL, 2) == [0]
