"""The kinds of messages are those of the core and of the methods that can be used; a stranger's disturbs no other's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from djinn_jupyter.server.messages import digest as digest_of_server
from djinn_jupyter.wire import kinds, protocol
from djinn_jupyter.wire.greeting import Checked
from djinn_jupyter.wire.requests import Hello
from tests.strangers import add_stranger

HEAD: Final = """
from djinn_jupyter.wire.base import EventBase
from djinn_jupyter.wire.base import ReplyBase
from djinn_jupyter.wire.request_base import SessionRequest
"""
REPLY: Final = f"{HEAD}\nclass EntropyRead(ReplyBase):\n    entropy: float\n"
REQUEST: Final = f"{REPLY}\nclass ReadEntropy(SessionRequest[EntropyRead], shared='read'):\n    layer: int = 0\n"
ASK: Final = f"{REPLY}\nclass Ask(SessionRequest[EntropyRead])"
ASKED: Final = """
import json
from djinn_jupyter import extensions
from djinn_jupyter.server import messages as of_server
from djinn_jupyter.wire import codec, kinds, protocol
from djinn_jupyter.wire.requests import Ping

assert codec.decode_request(codec.encode(1, Ping())).body == Ping()
here = [*kinds.of_methods().items()]
known = {method.name: [kind.__name__ for kind in its.all] for method, its in here if not method.is_ours}
print(json.dumps({
    "known": known,
    "digests": {name: digest for name, digest in protocol.method_digests().items() if name in known},
    "left out": sorted(extensions.troubles().values()),
    "core": protocol.digest(),
    "server": of_server.digest(),
}))
"""


def asked(folder: Path, code: str = ASKED) -> Any:
    """Return what a process says that has the distributions of this folder."""
    path = os.pathsep.join([str(folder), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert (told["core"], told["server"]) == (protocol.digest(), digest_of_server())
    return told


def test_a_stranger_adds_its_kinds_and_changes_no_other_digest(tmp_path: Path) -> None:
    event = f"{REQUEST}\nclass EntropyProgressed(EventBase):\n    done: int\n"
    add_stranger(tmp_path, "entropy", "djinn_entropy", {"request": event})
    told = asked(tmp_path)
    assert told["known"] == {"entropy": ["ReadEntropy", "EntropyRead", "EntropyProgressed"]}
    assert len(told["digests"]["entropy"]) == protocol.DIGEST_CHARACTERS
    assert told["left out"] == []


def test_of_two_strangers_with_one_tag_neither_is_used(tmp_path: Path) -> None:
    for name in ("one", "two"):
        add_stranger(tmp_path, name, f"djinn_{name}", {"request": REQUEST})
    add_stranger(tmp_path, "three", "djinn_three", {"request": REQUEST.replace("Entropy", "Other")})
    told = asked(tmp_path)
    assert told["known"] == {"three": ["ReadOther", "OtherRead"]}
    assert told["left out"] == [
        f"The method {this} (djinn_{this} of {this} 1.0) is left out, because its message 'ReadEntropy' is also that "
        f"of {other} (djinn_{other} of {other} 1.0): uninstall one of them, and begin the process anew."
        for this, other in (("one", "two"), ("two", "one"))
    ]


@pytest.mark.parametrize(
    ("name", "other"),
    [("ReadEntropy", "Ping"), ("EntropyRead", "Failed"), ("ReadEntropy", "ReadHeads"), ("EntropyRead", "HeadsRead")],
)
def test_a_tag_of_the_core_or_of_ours_stays_theirs(tmp_path: Path, name: str, other: str) -> None:
    add_stranger(tmp_path, "entropy", "djinn_entropy", {"request": REQUEST.replace(name, other)})
    told = asked(tmp_path)
    assert told["known"] == {}
    [why] = told["left out"]
    ours = "heads (djinn_jupyter.methods.heads of djinn-jupyter" if "Heads" in other else "djinn-jupyter"
    assert f"its message {other!r} is also that of {ours}" in why


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (f"{ASK}: ...\n{ASK.replace('Ask', 'Again')[:-1]}, tag='Ask'): ...", "its messages cannot be read (TypeError"),
        (f"{ASK}:\n    a: 'NoSuchType'", "its messages cannot be read (NameError"),
        (f"{HEAD}\nclass Ask(SessionRequest[int]): ...", "(TypeError: Ask is answered by <class 'int'>, which is no"),
        (f"{ASK[:-1]}, shared='all'): ...", "(ValidationError: Invalid enum value 'all' - at `$.shared`)"),
    ],
    ids=["one tag twice", "no such type", "no reply", "no such term"],
)
def test_messages_that_cannot_be_read_leave_their_method_out(tmp_path: Path, request_: str, why: str) -> None:
    add_stranger(tmp_path, "entropy", "djinn_entropy", {"request": request_})
    told = asked(tmp_path)
    assert told["known"] == {}
    [said] = told["left out"]
    assert why in said


def test_an_import_that_was_interrupted_leaves_no_kind_behind(tmp_path: Path) -> None:
    once = "import sys\nif not hasattr(sys, 'once'):\n    sys.once = True\n    raise KeyboardInterrupt"
    add_stranger(tmp_path, "entropy", "djinn_entropy", {"request": f"{REQUEST}\n{once}"})
    first = "from djinn_jupyter.wire import kinds\ntry: kinds.known()\nexcept KeyboardInterrupt: pass\n"
    told = asked(tmp_path, f"{first}else: raise SystemExit\n{ASKED}")
    assert told["known"] == {"entropy": ["ReadEntropy", "EntropyRead"]}
    assert told["left out"] == []


def test_the_core_and_each_method_of_ours_have_their_own() -> None:
    assert Hello in kinds.core().requests
    of_methods = {method.name: its for method, its in kinds.of_methods().items()}
    assert [kind.__name__ for kind in of_methods["heads"].all] == ["ReadHeads", "HeadsRead"]
    assert all(kinds.method_of(kind) is None for kind in kinds.core().all)
    assert Checked in of_methods["sweep"].replies  # of the core, and of two methods
    assert kinds.known().replies.count(Checked) == 1


def test_a_digest_of_a_method_that_is_missing_or_another_keeps_no_other_apart() -> None:
    here = protocol.method_digests()
    assert protocol.apart(here) == {}
    others = {name: digest for name, digest in here.items() if name != "heads"} | {"sweep": "another", "more": "a"}
    assert protocol.apart(others) == {"heads": "lacks", "sweep": "has another version of", "more": "alone has"}
