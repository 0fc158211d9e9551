"""A secret is not shown, however it is printed."""

import pickle
from dataclasses import dataclass

from rhinoctl.wire.secret import Secret


@dataclass
class Holder:
    token: Secret


def test_it_is_never_shown() -> None:
    secret = Secret("hunter2")
    shown = f"{secret} {secret!r} {secret:>20} {Holder(secret)} {[secret]} %s" % secret
    assert "hunter2" not in shown
    assert secret.reveal() == "hunter2"


def test_it_is_compared_by_value() -> None:
    assert Secret("ä") == Secret("ä")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1


def test_it_travels_with_a_closure() -> None:
    assert pickle.loads(pickle.dumps(Secret("a"))) == Secret("a")
