"""Lists of workers in sentences for people."""

from rhinoctl.protocol.phrases import workers


def test_several_workers_do_what_one_does() -> None:
    assert workers(["w1"]) == "worker w1"
    assert workers(("w2", "w1")) == "workers w2, w1"
    assert workers({"w1"}, "does not listen", "do not listen") == "worker w1 does not listen"
    assert workers(["w1", "w2"], "does not", "do not") == "workers w1, w2 do not"
