"""The meeting place of Flight's threads and the loop, without either."""

import threading
from dataclasses import replace
from time import monotonic

from rhinoctl.protocol.messages import Done, Header, Refusal, RefusalCode, decode
from rhinoctl.wire.bounds import DEFAULT_BOUNDS
from rhinoctl.wire.frames import Head
from rhinoctl.wire.inbox import Inbox, Slot

MESSAGE = Done(header=Header(cluster="c"))
HEAD = Head(sizes=(), inline=True)


def inbox(**bounds: int) -> Inbox:
    return Inbox(replace(DEFAULT_BOUNDS, **bounds))


def offer(box: Inbox, head: Head = HEAD) -> Slot:
    slot = box.offer(head, MESSAGE, ())
    assert slot is not None
    return slot


def never_gone() -> bool:
    return False


def test_one_link_is_kept_in_order() -> None:
    box = inbox()
    places = [("a", 1), ("a", 3), ("a", 2), ("b", 1), ("a", 3), ("a", 4), ("", 0)]
    heads = [replace(HEAD, link=link, place=place) for link, place in places]
    accepted = [box.offer(head, MESSAGE, ()) is not None for head in heads]
    assert accepted == [True, True, False, True, True, True, True]


def test_a_request_whose_caller_has_gone_is_not_given_to_the_loop() -> None:
    box = inbox()
    slot, other = offer(box), offer(box)
    assert box.wait(slot, monotonic() + 60, gone=lambda: True) is None
    envelope = box.take(0.0)
    assert envelope is not None
    assert envelope.handle == other.handle
    assert box.take(0.0) is None


def test_the_first_answer_counts() -> None:
    box = inbox()
    slot = offer(box)
    box.answer(slot.handle, (b"first", ()))
    box.answer(slot.handle, (b"second", ()))
    assert box.wait(slot, monotonic(), never_gone) == (b"first", ())
    box.answer(slot.handle, (b"third", ()))


def test_closing_answers_what_no_loop_has_seen_and_drops_the_rest() -> None:
    box = inbox()
    seen, unseen = offer(box), offer(box)
    box.take(0.0)
    box.close()
    late = offer(box)
    assert box.wait(seen, monotonic() + 60, never_gone) is None
    for slot in (unseen, late):
        answer = box.wait(slot, monotonic() + 60, never_gone)
        assert answer is not None
        refusal = decode(answer[0])
        assert isinstance(refusal, Refusal)
        assert refusal.code is RefusalCode.BUSY
    assert box.take(0.0) is None
    assert box.admit(0, monotonic()) is RefusalCode.BUSY


def test_requests_are_counted() -> None:
    box = inbox(inbox_max=2)
    assert [box.admit(0, monotonic()) for _ in range(3)] == [None, None, RefusalCode.BUSY]
    box.release(0)
    assert box.admit(0, monotonic()) is None


def test_bytes_are_bounded_but_one_request_always_fits() -> None:
    box = inbox(inbox_bytes_max=100)
    assert box.admit(1000, monotonic()) is None
    assert box.admit(1, monotonic()) is RefusalCode.BUSY
    box.release(1000)
    assert [box.admit(size, monotonic()) for size in (60, 40, 1)] == [None, None, RefusalCode.BUSY]


def test_who_finds_no_room_waits_for_it() -> None:
    box = inbox(inbox_bytes_max=100)
    box.admit(100, monotonic())
    found: list[RefusalCode | None] = []
    thread = threading.Thread(target=lambda: found.append(box.admit(50, monotonic() + 60)))
    thread.start()
    box.release(100)
    thread.join(60)
    assert found == [None]
