"""docs/sharing.md as two persons follow it, each with a home folder of their own: every command in its order. The
engine is started as docs/djinn.service does."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from djinn_jupyter.wire.keys import PREFIX
from tests.process.sshd import sshd

ROOT = Path(__file__).parents[2]
COMMANDS = re.findall(r"^\$ djinn (.*)$", (ROOT / "docs" / "sharing.md").read_text(), re.MULTILINE)
KEY = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")
LISTENS = re.compile(r"listens on tcp://(127\.0\.0\.1:\d+)\. Admitted: anna\.")
UNIT = [
    tuple(line.split("=", 1))
    for line in (ROOT / "docs" / "djinn.service").read_text().splitlines()
    if line and line[0] not in "#["
]
SECONDS = 120.0
NAMED_BY_A_SIDE = ("HOME", "JUPYTER_", "PYTHONPATH", "TMPDIR")  # variables
SIDES = {"new": "laptop", "trust": "laptop", "allow": "box", "revoke": "box"}

# The verbs of the quickstart, to the last bit, as the notebook of either machine runs them.
WORK = """
import hashlib, sys
import numpy as np
import djinn_jupyter as dj
engine = dj.load("demo", **({"at": sys.argv[1]} if sys.argv[1:] else {}))
session, made = engine.session("main", fresh=True, force=True), hashlib.sha256()
def keep(value): made.update(np.ascontiguousarray(value).tobytes())
session.breakpoint("resid_post.3")
keep(session.run("The capital of France is", max_new_tokens=4).hidden)
session.edit(dj.scale(0.5))
keep(session.inspect("resid_post.3").value)
session.clear()
done = session.resume()
keep(session.logits())
fork = session.fork("other")
fork.steer("resid_post.2", dj.scale(1.5))
heard = []
keep(fork.run("The capital of Italy is", max_new_tokens=4, on_token=heard.append).tokens)
keep(fork.logits())
print(made.hexdigest(), len(heard), [one.owner for one in engine.sessions()].count("anna"))
"""

SHARES = re.findall(r"^%djinn_share .*$", (ROOT / "docs" / "sharing.md").read_text(), re.MULTILINE)
CELLS = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in ("%load_ext djinn_jupyter", "import djinn_jupyter as dj", *sys.argv[1:]):
    shell.run_cell(cell)
"""


class Side:
    """A machine, as far as a home folder makes one."""

    def __init__(self, home: Path, **more: str) -> None:
        home.mkdir()
        folders = {f"JUPYTER_{kind}_DIR": str(home / kind.lower()) for kind in ("DATA", "RUNTIME", "CONFIG")} | more
        self.environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT), **folders}
        self.home = home
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen([sys.executable, *words], env=self.environment, text=True, **pipes)
        self.started.append(process)
        return process

    def says(self, *words: str) -> str:
        return self.start(*words).communicate(timeout=SECONDS)[0]

    def djinn(self, words: str) -> str:
        return self.says("-m", "djinn_jupyter.cli.main", *words.split())


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[dict[str, Side]]:
    found = {"laptop": Side(tmp_path / "laptop"), "box": Side(tmp_path / "box", **_environment(tmp_path / "box"))}
    yield found
    for process in (*found["laptop"].started, *found["box"].started):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # at which `djinn serve` ends its engine
            process.communicate(timeout=SECONDS)


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_every_command_of_the_page_does_what_it_says(sides: dict[str, Side], tmp_path: Path) -> None:
    laptop, box = sides["laptop"], sides["box"]
    assert [next(word for word in words.split() if word != "key") for words in COMMANDS] == [
        "new", "allow", "serve", "trust", "people", "quota", "allow", "revoke"
    ]  # fmt: skip
    new, allow, serve, trust, people, quota, allow_for_a_day, revoke = COMMANDS
    assert dict(UNIT)["ExecStart"] == f"/opt/djinn/bin/djinn {serve}"
    drawn = laptop.djinn(new)
    public = KEY.findall(drawn)[0]
    assert allow in drawn.replace(public, KEY.findall(allow)[0])
    admitted = box.djinn(KEY.sub(public, allow))
    engines = KEY.findall(admitted)[0]
    served = box.start("-m", "djinn_jupyter.cli.main", *serve.replace("0.0.0.0:5556", "127.0.0.1:*").split())
    lines = []
    while not (found := LISTENS.search(line := served.stdout.readline())):
        assert line, lines
        lines.append(line)
    at = found[1]
    trusted = laptop.djinn(KEY.sub(engines, trust).replace("gpu-box", at))
    assert f"%djinn_load demo --at {at}" in trusted
    afar, here = laptop.says("-c", WORK, at), box.says("-c", WORK)
    assert afar == here
    _, heard, sessions = afar.split()
    assert (int(heard) > 0, sessions) == (True, "2")
    assert _through_ssh(box, laptop, tmp_path / "ssh") == here
    assert re.search(r"anna +2 +[\d.]+ [KM]iB .* (0|[\d.]+ s) ago", listed := box.djinn(people)), listed
    _hold_to_quotas(laptop, box, at, quota)
    assert "serves demo" in laptop.says("-c", WORK.replace('load("demo"', 'load("gpt2"'), at)
    _share_with_bert(laptop, box, Side(tmp_path / "bert"), at)
    _no_secret_is_told(sides, served, drawn + admitted + trusted + line)
    assert re.match(r"anna is admitted until 20[0-9T:-]+Z\. ", box.djinn(KEY.sub(public, allow_for_a_day)))
    assert "is not admitted any more" in box.djinn(revoke)
    assert "does not admit your key" in laptop.says("-c", WORK, at)
    served.send_signal(signal.SIGINT)
    assert "The engine has ended" in served.communicate(timeout=SECONDS)[0]
    assert "Nothing listens at" in laptop.says("-c", WORK, at)


def _environment(box: Path) -> dict[str, str]:
    """Return the environment that the unit gives its engine, with the folders of the system beneath `box`."""
    words = " ".join(value for name, value in UNIT if name == "Environment").split()
    given = dict(
        word.replace("%S/djinn", str(box)).replace("%t/djinn", str(box / "runtime")).split("=") for word in words
    )
    assert given.keys() == {"HOME", "JUPYTER_RUNTIME_DIR", "TMPDIR"}
    return given


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_has_no_complaint_about_the_unit(tmp_path: Path) -> None:
    unit, installed = tmp_path / "djinn.service", shutil.which("true")
    text = (ROOT / "docs" / "djinn.service").read_text()
    unit.write_text(text.replace("/opt/djinn/bin/djinn", str(installed)))
    verified = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")


def _through_ssh(box: Side, laptop: Side, folder: Path) -> str:
    """Return what the work says through a real sshd of the box, whose engine it finds there."""
    there = {name: value for name, value in box.environment.items() if name.startswith(NAMED_BY_A_SIDE)}
    with sshd(folder, there) as server:
        laptop.environment["PATH"] = f"{server.bin}:{os.environ['PATH']}"
        return laptop.says("-c", WORK.replace('fork("other"', 'fork("third"'), "ssh://box")


def _no_secret_is_told(sides: dict[str, Side], served: subprocess.Popen[str], said: str) -> None:
    """See that no secret is in what was printed, in a process's words or environment, in an entry or a log."""
    import msgspec

    secrets = [
        msgspec.json.decode(path.read_bytes())["secret"]
        for side in sides.values()
        for kind in ("own", "server")
        for path in (side.home / "data" / "djinn" / "keys" / kind).glob("*")
    ]
    assert len(secrets) == 2, secrets
    told = [said]
    for process in psutil.process_iter():
        try:
            told += [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
    for side in sides.values():
        told += [path.read_text(errors="replace") for path in (side.home / "runtime").rglob("*") if path.is_file()]
    assert not [text for text in told for secret in secrets if secret in text]


def _hold_to_quotas(laptop: Side, box: Side, at: str, own: str) -> None:
    """Follow the page's lines about quotas: of a person's own, which count at once, and back to the common one."""
    common = "anna has the common quota of each engine (--quota).\n"
    assert box.djinn("quota anna") == common
    assert box.djinn(own) == "anna  device=16GiB,running=none\n"
    assert "device=16GiB" in box.djinn("people")
    assert box.djinn("quota anna sessions=2 device=1MiB") == "anna  sessions=2,device=1MiB\n"
    more = f"import djinn_jupyter as dj\ndj.load('demo', at={at!r}).session('a third')"
    refused = laptop.says("-c", more)
    assert (
        "anna's quota of sessions is 2, and there are 2: close one (%djinn_close), or ask the engine's user" in refused
    )
    assert "'everything' is no quota: write one of device, host, disk" in box.djinn("quota anna everything")
    assert box.djinn("quota anna --common") == common


def _share_with_bert(anna: Side, box: Side, bert: Side, at: str) -> None:
    """Follow the page's lines about a session of anna's, whose line they share with bert, who has a key too."""
    load = f"%djinn_load demo --at {at} --session main"
    listed = f"print([one.name for one in dj.load('demo', at={at!r}).sessions()])"
    (share,) = SHARES
    refused = anna.says("-c", CELLS, load, share)
    assert "No bert is admitted here" in refused
    public = KEY.findall(bert.djinn("key new bert"))[0]
    engines = KEY.findall(box.djinn(f"key allow {public} --as bert"))[0]
    bert.djinn(f"key trust {at} {engines}")
    assert "anna@main" not in bert.says("-c", CELLS, load, listed)
    anna.says("-c", CELLS, load, share)
    entered = bert.says("-c", CELLS, load, listed, "%djinn_use anna@main")
    assert entered.count("anna@main") >= 2, entered
    anna.says("-c", CELLS, load, f"{share.rpartition(' ')[0]} --none")
    assert "anna@main" not in bert.says("-c", CELLS, load, listed)
