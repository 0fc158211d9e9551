"""A worker more or less in an inventory's text: what else is there stays, byte for byte."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhinoctl.config.inventory import parse_inventory
from rhinoctl.config.inventory_edit import NewWorker, with_worker, without_worker
from rhinoctl.errors import AlreadyInInventory, CannotEditInventory, UnknownHost

TOP = "# ours\ncluster: clicks   # the name\ncontroller: {host: c1}\n"

LAYOUTS = {
    "block": "workers:\n  - host: w1\n    rack: r1\n  - host: w2\n    disks:\n      - /data1\n",
    "not indented": "workers:\n- host: w1\n- host: w2\n",
    "braces": "workers:\n  - {host: w1, rack: r1}   # old\n  - {host: w2}   # new\n",
    "braces over lines": "workers:\n  - {host: w1}\n  - {host: w2,\n     rack: r2}  # two\n",
    "wide": "workers:\n    -   host: w1\n    -   host: w2\n        rack: r2\n",
    "dash alone": "workers:\n  -\n    host: w1\n  -   # the second\n    host: w2\n",
    "keys after": "workers:\n  - host: w1\n  - host: w2\n\n# all agents\nagent:\n  cache_mb: 33\n",
    "keys at once": "workers:\n  - {host: w1}\n  - {host: w2}\n# all\nagent: {cache_mb: 33}\n",
    "comments below": "workers:\n  - host: w1\n#    name: w1        # default\n  - host: w2\n"
    "#    rack: r1\n    # slow disks\n\n# the end\n",
    "comment of the list": "workers:\n  - host: w1\n  # rack two\n  - host: w2\n  # no more\n",
    "empty lines": "workers:\n\n  - host: w1\n\n  - host: w2\n\n\n",
    "nothing said": "workers:\n  - host: w1\n  - host: w2\n    limits:\n    ssh:\n",
    "end of document": "workers:\n  - host: w1\n  - host: w2\n...\n",
}

words = st.text("abcdefgh0123456789.-", min_size=1, max_size=8)
workers = st.builds(
    NewWorker,
    host=st.one_of(
        words.map(lambda word: f"n{word}n"),
        st.sampled_from(
            ["10.0.0.9", "fe80::9", "::9", "Yes", "null", "1e3", "W9.example.com", "1_0"]
        ),
    ),
    name=st.sampled_from(["w9", "no", "7", "0x1f", "1.5"]),
    address=st.sampled_from([None, "10.1.0.9", "fe80::9%eth0"]),
    rack=st.sampled_from([None, "r1", "12", "true", "off", "-"]),
    slots=st.sampled_from([None, 1, 1024]),
    disks=st.sampled_from([(), ("/data1",), ("/data1/rhino", "/data2/r@1")]),
)


def text_of(layout: str, *, crlf: bool = False, final: bool = True) -> str:
    text = TOP + LAYOUTS[layout]
    text = text if final else text.rstrip("\n")
    return text.replace("\n", "\r\n") if crlf else text


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=30)
@given(worker=workers, crlf=st.booleans(), final=st.booleans())
def test_to_take_out_what_was_put_in_gives_the_text_from_before(
    layout: str, worker: NewWorker, crlf: bool, final: bool
) -> None:
    text = text_of(layout, crlf=crlf, final=final)
    edited = with_worker("inventory.yml", text, worker)
    before, after = parse_inventory(text)[0], parse_inventory(edited.text)[0]
    assert before is not None
    assert after is not None
    *old, new = after.workers
    assert old == before.workers
    assert {key: getattr(new, key) for key in worker.said()} == worker.said()
    assert after.model_copy(update={"workers": old}) == before
    end = "\r\n" if crlf else "\n"
    left = edited.text.split(end)
    at = next(n for n in range(len(left)) if tuple(left[n:][: len(edited.lines)]) == edited.lines)
    assert left[:at] + left[at + len(edited.lines) :] == text.split(end)  # nothing else is other
    back = without_worker("inventory.yml", edited.text, worker.id)
    assert (back.text, back.lines) == (text, edited.lines)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["w1", "w2"])
def test_any_worker_can_be_taken_out(layout: str, name: str) -> None:
    text = text_of(layout)
    edited = without_worker("inventory.yml", text, name)
    before, after = parse_inventory(text)[0], parse_inventory(edited.text)[0]
    assert before is not None
    assert after is not None
    assert after.workers == [worker for worker in before.workers if worker.id != name]
    at = text.index(edited.lines[0])
    assert edited.text == text[:at] + text[at:].removeprefix("\n".join(edited.lines) + "\n")


@pytest.mark.parametrize(
    ("layout", "lines"),
    [
        ("block", ["  - host: w9", "    rack: r1", "    disks: [/d1, /d2]"]),
        ("braces", ["  - {host: w9, rack: r1, disks: [/d1, /d2]}"]),
        ("wide", ["    -   host: w9", "        rack: r1", "        disks: [/d1, /d2]"]),
        ("not indented", ["- host: w9", "  rack: r1", "  disks: [/d1, /d2]"]),
    ],
)
def test_it_is_written_as_the_last_one_is(layout: str, lines: list[str]) -> None:
    worker = NewWorker(host="w9", rack="r1", disks=("/d1", "/d2"))
    assert list(with_worker("inventory.yml", text_of(layout), worker).lines) == lines


def test_it_comes_after_the_comments_of_the_last_one_and_before_those_of_what_follows() -> None:
    text = with_worker("f", text_of("comments below"), NewWorker(host="w9")).text
    assert text.endswith("    # slow disks\n  - host: w9\n\n# the end\n")
    text = with_worker("f", text_of("keys at once"), NewWorker(host="w9")).text
    assert text.endswith("  - {host: w2}\n  - {host: w9}\n# all\nagent: {cache_mb: 33}\n")


def test_the_comments_on_a_worker_s_lines_go_with_it_and_those_of_the_list_stay() -> None:
    assert without_worker("f", text_of("comments below"), "w2").text == (
        f"{TOP}workers:\n  - host: w1\n#    name: w1        # default\n\n# the end\n"
    )
    assert without_worker("f", text_of("comment of the list"), "w2").text == (
        f"{TOP}workers:\n  - host: w1\n  # rack two\n  # no more\n"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{TOP}workers: [{{host: w1}}, {{host: w2}}]\n", "in brackets"),
        (f"{TOP}workers:\n  [{{host: w1}},\n   {{host: w2}}]\n", "in brackets"),
        (f"{TOP}workers:\n\t- host: w1\n\t- host: w2\n", "not YAML"),
        (f"{TOP}workers:\n  - host: w1\n\t  rack: r1\n  - host: w2\n", "not YAML"),
        (f"{TOP}# a\u2028workers:\n  - host: w1\n  - host: w2\n", "mistakes|line ends"),
        ((TOP + LAYOUTS["block"]).replace("\n", "\r"), "line ends"),
        (f"{TOP}workers:\n  - host: w1\n  - host: w2\nwrokers: 1\n", "has mistakes"),
    ],
)
def test_what_cannot_be_edited_is_left_to_a_person(text: str, why: str) -> None:
    with pytest.raises(CannotEditInventory, match=why) as fault:
        with_worker("inventory.yml", text, NewWorker(host="w9", rack="r1"))
    if "mistakes" not in fault.value.message:
        assert "{host: w9, rack: r1}" in fault.value.remedy
    with pytest.raises(CannotEditInventory):
        without_worker("inventory.yml", text, "w2")


def test_what_others_need_is_not_taken_out() -> None:
    text = f"{TOP}workers:\n  - {{host: w1, disks: &d [/data]}}\n  - {{host: w2, disks: *d}}\n"
    with pytest.raises(CannotEditInventory, match="was not changed"):
        without_worker("inventory.yml", text, "w1")
    assert without_worker("inventory.yml", text, "w2").lines == ("  - {host: w2, disks: *d}",)


@pytest.mark.parametrize(
    "worker",
    [NewWorker(host="w1"), NewWorker(host="W2", name="w9"), NewWorker(host="x", name="w1")],
)
def test_one_that_is_there_is_named(worker: NewWorker) -> None:
    with pytest.raises(AlreadyInInventory, match=r"worker w[12] on w[12] is in f already"):
        with_worker("f", text_of("block"), worker)


@pytest.mark.parametrize(
    ("worker", "why"),
    [
        (NewWorker(host="w 9"), "letters, digits"),
        (NewWorker(host="w9", slots=0), "slots"),
        (NewWorker(host="w9", disks=("data",)), "absolute"),
        (NewWorker(host="controller"), "controller"),
        (NewWorker(host="fe80::9"), "cannot be a worker's name"),
    ],
)
def test_one_that_cannot_be_is_refused_with_the_reason(worker: NewWorker, why: str) -> None:
    with pytest.raises(CannotEditInventory, match=why):
        with_worker("f", text_of("block"), worker)


def test_who_is_not_there_and_who_is_the_last_is_not_taken_out() -> None:
    with pytest.raises(UnknownHost, match="no worker w9"):
        without_worker("f", text_of("block"), "w9")
    alone = without_worker("f", text_of("block"), "w1").text
    with pytest.raises(CannotEditInventory, match="the only one"):
        without_worker("f", alone, "w2")
