"""Where an engine is and what it is started with; how a model, an option and a command are spelled."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import io
import math
import re
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from djinn_jupyter import machine
from djinn_jupyter.api import loading
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.cli.commands import as_typed
from djinn_jupyter.cli.engines import _add_start
from djinn_jupyter.cli.main import parser as cli_parser
from djinn_jupyter.editors.dap.protocol import Launch
from djinn_jupyter.engine.__main__ import engine_config, run
from djinn_jupyter.engine.__main__ import parser as engine_parser
from djinn_jupyter.engine.model.loading.load import choose_device
from djinn_jupyter.engine.process.registration import LauncherPipe
from djinn_jupyter.engine.residency.residency import open_disk
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import DjinnError, MissingDependency, ModelNotFound, ModelRefused, UsageError
from djinn_jupyter.link import launcher, spelling, waiting
from djinn_jupyter.link.channel import Channels
from djinn_jupyter.link.launcher import require_options
from djinn_jupyter.link.naming import default_session_name, holder_name, label
from djinn_jupyter.link.registry import registry_folder
from djinn_jupyter.link.spelling import spell_model
from djinn_jupyter.link.starting import StartCallbacks
from djinn_jupyter.magics.loading import LoadingMagics
from djinn_jupyter.magics.parsing import read
from djinn_jupyter.magics.running import RunningMagics
from djinn_jupyter.modules.api import note_on
from djinn_jupyter.settings import (
    GivenOptions,
    GivenSampling,
    Identity,
    ModelOptions,
    Options,
    ProcessOptions,
    check_least,
    chosen,
    flag_of,
    part_of,
    settings_of,
    words_of,
)
from djinn_jupyter.units import parse_bytes
from djinn_jupyter.wire.nouns import Sampling
from tests.process.fake_engine import DESCRIPTION
from tests.process.served import entry_for
from tests.waiting import until


def test_every_option_can_be_given_everywhere_and_is_a_field_of_a_value() -> None:
    """An option that a message advises can be given."""
    names = {one.name for one in settings_of(GivenOptions)}
    values = (ModelOptions, Options, ProcessOptions)
    assert names | {"model"} == {field.name for kind in values for field in dataclasses.fields(kind)}
    assert names <= inspect.signature(loading.load).parameters.keys()
    assert names <= {field.name for field in msgspec.structs.fields(Launch)}
    starting = argparse.ArgumentParser()
    _add_start(starting)
    for parser in (starting, LoadingMagics.djinn_load.parser, engine_parser()):
        dests = {action.dest: action for action in parser._actions}
        assert names <= dests.keys()
        assert all(dests[one.name].help == one.described.help for one in settings_of(GivenOptions))
    assert all(one.described.help in str(loading.load.__doc__) for one in settings_of(GivenOptions))


def test_every_setting_of_sampling_can_be_given_everywhere() -> None:
    names = {one.name for one in settings_of(GivenSampling)}
    assert names == {field.name for field in msgspec.structs.fields(Sampling)}
    assert names <= inspect.signature(RemoteSession.run).parameters.keys()
    assert names <= {field.name for field in msgspec.structs.fields(Launch)}
    assert names <= {action.dest for action in RunningMagics.djinn_run.parser._actions}


@pytest.mark.parametrize(("former", "now"), [("attn", "attention"), ("nap_seconds", "sleep_seconds")])
def test_an_option_is_known_by_its_former_name(former: str, now: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(loading, "attach", lambda entry: entry)
    monkeypatch.setattr(loading, "adopt_or_start", lambda *wanted, **_: asked.append(wanted))
    value: Any = {"attention": "eager", "sleep_seconds": 7.0}[now]
    flag = flag_of(former)
    given = LoadingMagics.djinn_load.parser.parse_args(["demo", flag, str(value)])
    for options in ({former: value}, {now: value}, chosen(GivenOptions, given)):
        loading.load("demo", **options)
    assert len(asked) == 3
    assert asked[0] == asked[1] == asked[2]
    assert value in (getattr(asked[0][0], now, None), getattr(asked[0][1], now, None))


def test_an_abbreviation_or_a_near_name_means_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    for typed in ["--att eager", "--att=eager", "--attn eager", "--attenti eager"]:
        line = ["demo", *typed.split()]
        assert read(LoadingMagics.djinn_load.parser, " ".join(line)).attention == "eager"
        assert cli_parser().parse_args(["start", *line]).attention == "eager"
    with pytest.raises(SystemExit):
        cli_parser().parse_args(["start", "demo", "--dev", "cpu"])
    assert "--dev could match --device, --devices, --device-memory" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"^There is no option devise; did you mean device\?$"):
        loading.load("demo", devise="cpu")
    for typed, said in [
        ("--wehn", "; did you mean --when?"),
        ("--k", "; did you mean -k?"),
        ("--max-new-tokens", "; did you mean --max-tokens?"),
        ("--off", ""),  # --coef shares as many letters with it, dashes included
    ]:
        known = ["--when", "-k", "--max-tokens", "--coef"]
        assert spelling.closest_option(typed, known, {"max_new_tokens": "--max-tokens"}) == said


def test_an_engine_started_by_hand_has_the_same_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    for flag, said in [("--threads=0", "threads is at least 1"), ("--sleep-seconds=nan", "nan")]:
        with pytest.raises(UsageError, match=said):
            run(engine_parser().parse_args(["--model", "demo", flag]), LauncherPipe(None))
    with pytest.raises(SystemExit):
        engine_parser().parse_args(["--model", "demo", "--device-memory", "much"])
    assert "--device-memory: 'much' is no amount of memory" in capsys.readouterr().err
    check_least(GivenOptions, {"host_memory": 9000 << 40, "idle_swap_seconds": 0.0, "sleep_seconds": math.inf})
    check_least(GivenOptions, {"host_memory": 0, "disk_memory": 0, "page_positions": 1, "threads": 1})
    identity = Identity(model="a b", dtype="float16", random_weights=True, random_seed=7)
    options = Options(device_memory=5, sleep_seconds=math.inf, no_journal=True, stops_kept=3)
    read = engine_config(engine_parser().parse_args(words_of(identity, options, ProcessOptions(listen="tcp://h:1"))))
    assert read.identity == identity
    assert part_of(Options, dataclasses.asdict(read)) == dataclasses.replace(options, idle_swap_seconds=60.0)


@pytest.mark.parametrize("written", ["cuda", "cuda:0"])
def test_who_names_the_gpu_means_the_engine_that_found_itself_there(
    written: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvidia0").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "DEV", tmp_path)
    found = choose_device_of_a_machine_with_a_gpu(monkeypatch)
    running = msgspec.structs.replace(entry_for("c"), found=Identity(model="fake", device=str(found)))
    wanted: list[Identity] = []
    monkeypatch.setattr(loading, "attach", lambda entry: entry)
    monkeypatch.setattr(loading, "adopt_or_start", lambda identity, *_, **__: wanted.append(identity))
    loading.load("fake", device=written)
    assert running.serves(wanted[0])


def choose_device_of_a_machine_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    monkeypatch.delenv("DJINN_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    return choose_device(None)


def test_amounts_of_memory() -> None:
    for written, meant in [
        (None, None),
        (5, 5),
        ("20GiB", 20 * 2**30),
        ("1.5 GB", 3 * 2**29),
        ("512M", 2**29),
        ("4096", 4096),
        ("1t", 2**40),
    ]:
        assert parse_bytes(written) == meant
    for written in ["", "GiB", "-1", "20 XB", "1e9", "9000000TiB", "9" * 400]:
        with pytest.raises(UsageError):
            parse_bytes(written)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"page_positions": 0}, "page_positions is at least 1; it cannot be 0."),
        ({"sleep_seconds": math.nan}, "sleep_seconds is at least 0; it cannot be nan."),
        ({"threads": 0}, "threads is at least 1; it cannot be 0."),
        ({"device_memory": 0}, "device_memory is at least 1; it cannot be 0."),
        ({"threads": "4"}, "threads is a whole number; it cannot be '4'."),
        ({"stops_kept": 2**64}, "stops_kept has at most 64 bits; it cannot be 18446744073709551616."),
        ({"device_memory": 2e9}, "device_memory is a whole number or a text; it cannot be 2000000000.0."),
        ({"no_journal": "yes"}, "no_journal is True or False; it cannot be 'yes'."),
    ],
)
def test_an_option_that_no_engine_can_have_is_refused_before_one_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, option: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(loading, "adopt_or_start", lambda *asked, **more: pytest.fail("an engine was looked for"))
    with pytest.raises(UsageError) as refused:
        loading.load("demo", **option)
    assert str(refused.value).startswith(said)


def test_a_terminal_shows_the_present_step_where_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def start(*asked: Any, told: StartCallbacks, **more: Any) -> None:
        told.line("reading 3 files")
        told.second("reading 3 files (1 s)")
        until(lambda: "reading" in terminal.getvalue() or heard)

    monkeypatch.delenv("DJINN_STATIC", raising=False)
    monkeypatch.setattr(waiting, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "TICK_SECONDS", 1e-4)
    monkeypatch.setattr(loading, "adopt_or_start", start)
    monkeypatch.setattr(loading, "attach", lambda entry: entry)
    heard: list[str] = []
    for options, shown in (
        ({}, "The load of demo: reading 3 files, 0 s; an interrupt "),
        ({"progress": heard.append}, ""),
    ):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        loading.load("demo", **options)
        assert re.search(shown, terminal.getvalue())
        assert bool(terminal.getvalue()) == bool(shown)
    assert heard == ["reading 3 files"]


def test_the_channel_of_an_engine_that_has_ended_is_closed_at_the_next_load(monkeypatch: pytest.MonkeyPatch) -> None:
    class Channel:
        def __init__(self, *asked: Any, **more: Any) -> None:
            self.usable, self.closed = True, False

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr("djinn_jupyter.link.channel.SocketChannel", Channel)
    channels, entry = Channels(), entry_for("c")
    first: Any = channels.to(entry)
    first.usable = False
    again = msgspec.structs.replace(entry, started=entry.started + 1)  # begun anew: its number is the same
    second: Any = channels.to(again)
    assert (first.closed, second.closed) == (True, False)
    assert channels.to(again) is second
    channels.close()
    assert second.closed


def test_a_folder_means_the_same_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert spell_model("model") == spell_model(tmp_path / "model") == str((tmp_path / "model").resolve())
    assert spell_model("demo") == "demo"
    assert spell_model("organisation/name") == "organisation/name"


def test_a_gguf_file_is_named_by_its_absolute_path_under_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blob").write_bytes(b"GGUF")
    Path("model.gguf").symlink_to("blob")  # as the hub's cache has it
    assert spell_model("model.gguf") == str(tmp_path / "model.gguf")
    assert spell_model("absent.gguf") == "absent.gguf"
    (tmp_path / "below").mkdir()
    Path("other").symlink_to(".")
    for spelled in ("./model.gguf", "below/../model.gguf", "other/model.gguf"):  # else one file has two engines
        assert spell_model(spelled) == str(tmp_path / "model.gguf")


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_called_demo_is_passed_over_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    (tmp_path / "demo").mkdir()
    if there:
        (tmp_path / "demo/config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "_loaded", lambda identity, *rest: identity.model)
    with warnings.catch_warnings(record=True) as said:
        assert loading.load("demo") == "demo"
        if there:
            assert loading.load("./demo") == str(tmp_path / "demo")
    expected = "demo is the model that comes with Djinn; the one in the folder of that name here is ./demo."
    assert [(str(one.message), one.filename) for one in said] == [(expected, __file__)] * there
    told: list[str] = []
    loading.load("demo", progress=told.append)
    assert told == [expected] * there


def test_a_holder_is_a_kernel_or_a_process_and_a_session_has_its_notebooks_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class IPKernelApp:
        abs_connection_file = "/run/kernel-1234.json"

        @classmethod
        def initialized(cls) -> bool:
            return True

        @classmethod
        def instance(cls) -> IPKernelApp:
            return cls()

    module = types.ModuleType("ipykernel.kernelapp")
    module.IPKernelApp = IPKernelApp
    monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", module)
    assert holder_name() == "kernel-1234"
    monkeypatch.delitem(sys.modules, "ipykernel.kernelapp", raising=False)
    assert holder_name() == holder_name()
    assert holder_name().startswith("process-")
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__vsc_ipynb_file__", "/notebooks/look.ipynb", raising=False)
    assert default_session_name() == "/notebooks/look.ipynb"
    assert label(default_session_name()) == "look"
    assert label("v1.5") == "v1.5"


@pytest.mark.parametrize(
    ("has", "asked", "says"),
    [
        ({}, {"device_memory": 500 * 2**30}, "device_memory = what is free, not 500GiB: leave"),
        ({"host_memory": 3 * 2**29}, {"host_memory": 0}, "host_memory = 1.5GiB, not 0B: leave"),
        ({"page_positions": 16}, {"page_positions": 32}, "page_positions = 16, not 32: leave"),
    ],
)
def test_what_a_running_engine_has_and_what_was_asked_are_spelled_as_people_do(
    has: dict[str, Any], asked: dict[str, Any], says: str
) -> None:
    entry = msgspec.structs.replace(entry_for("c"), options=Options(**has))
    with pytest.raises(UsageError) as refused:
        require_options(entry, Options(**asked))
    assert says in str(refused.value)
    assert "%djinn_stop" in str(refused.value)


def test_where_the_home_folder_cannot_be_written_one_variable_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for ask in (registry_folder, lambda: open_disk(EngineConfig(model="demo"), torch.device("cpu"))):
        with pytest.raises(DjinnError, match=r": set JUPYTER_DATA_DIR to a folder of your own \(.* HF_HOME for models"):
            ask()
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    assert registry_folder().is_relative_to(tmp_path / "data")
    assert open_disk(EngineConfig(model="demo"), torch.device("cpu")) is not None


def without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "adopt_or_start", lambda *asked, **more: pytest.fail("an engine was looked for"))


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (
            "demo",
            {"dtype": "flaot32"},
            "'flaot32' is no dtype to serve a model in; did you mean float32? Write float32,",
        ),
        ("demo", {"device": "cuad"}, "'cuad' is no device; did you mean cuda? Write cpu, cuda or cuda:1."),
        ("demo", {"attention": "eagre"}, "'eagre' is no attention; did you mean eager? Write sdpa or eager."),
        ("demo", {"listen": "tcp://127.0.0.1:99999"}, "A port is at most 65535, not 99999."),
        ("demo", {"listen": "127.0.0.1:80"}, "'127.0.0.1:80' is no address to listen on; write tcp://127.0.0.1:7777"),
        *(
            (
                "demo",
                {"checkpoints": address},
                "Checkpoints lie in a folder, or in a store that speaks S3, at s3://BUCKET",
            )
            for address in ("gs://lab/djinn", "s3://", "s3://lab/djinn?token=secret", "s3://anna:secret@lab/djinn")
        ),
        *(
            ("demo", {"moves": address}, "Sessions on their way wait in a store that speaks S3, at s3://BUCKET/PATH")
            for address in ("gs://lab/djinn", "s3://anna:secret@lab/djinn")
        ),
        ("demo", {"moves": "/lab/djinn"}, "Sessions wait in the folder of the shared journal without an option;"),
        ("dmeo", {}, "There is no model dmeo; did you mean demo?"),
        ("./nowhere", {}, "There is no folder ./nowhere; give a folder, a hub name (owner/model) or demo."),
        ("meta llama/Llama", {}, "'meta llama/Llama' is neither a folder nor the name of a model on the hub"),
        ("~nobody-here/x", {}, "There is no model ~nobody-here/x: there is no such user."),
        ("a/" * 2500, {}, f"There is no model {'a/' * 30}...: file name too long."),
        ("demo", {"shared_journal": "a" * 300}, f"'{'a' * 59}... names no folder here: file name too long."),
        ("demo", {"device": "cuda:3"}, "There is no device cuda:3: the system shows no GPU. Write cpu, or leave"),
        (3, {}, "A model is named by a text or a path, not by int: write dj.load('demo')."),
        ("demo", {"quantize": "int4"}, "quantize is int8; it cannot be 'int4'."),
        ("demo", {"device": "mps"}, "mps is the GPU of a Mac, which this machine is not."),
    ],
)
def test_what_cannot_be_meant_is_refused_without_an_engine(
    model: str, options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_an_engine(monkeypatch)
    monkeypatch.setattr(machine, "DEV", Path("no such folder"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(spelling.sys, "platform", "linux")
    with pytest.raises(DjinnError) as refused:
        loading.load(model, **options)
    assert isinstance(refused.value, UsageError | ModelNotFound)
    assert "secret" not in str(refused.value)
    assert str(refused.value).startswith(said)


def test_mps_is_refused_on_a_mac_too(monkeypatch: pytest.MonkeyPatch) -> None:
    without_an_engine(monkeypatch)
    monkeypatch.setattr(spelling.sys, "platform", "darwin")
    with pytest.raises(UsageError, match="mps has not been proved: on a Mac an engine computes on the CPU"):
        loading.load("demo", device="mps")
    monkeypatch.setenv("DJINN_DEVICE", "mps:0")
    with pytest.raises(UsageError, match="mps has not been proved"):
        choose_device(None)


def test_windows_is_sent_to_wsl_without_the_modules_of_unix() -> None:
    load = (
        "import sys, psutil; sys.modules.update(dict.fromkeys(['fcntl', 'grp', 'pwd', 'resource', 'termios'])); "
        "import djinn_jupyter as dj; from djinn_jupyter.api import loading; sys.platform = 'win32'; dj.load('demo')"
    )
    done = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, check=False)
    said = done.stderr.splitlines()[-1]
    assert "Engines run on Linux and macOS, this is win32" in said
    assert said.endswith("On Windows, use Jupyter inside WSL 2.")


@pytest.mark.parametrize(
    ("model", "options", "means"),
    [
        ("demo", {"dtype": "bf16"}, ("dtype", "bfloat16")),
        ("demo", {"dtype": torch.bfloat16}, ("dtype", "bfloat16")),
        ("demo", {"device": torch.device("cuda", 1)}, ("device", "cuda:1")),
        ("gpt2", {"attention": "kernels-community/flash-attn"}, ("attention", "kernels-community/flash-attn")),
        ("demo", {"listen": "tcp://127.0.0.1:65535"}, ("model", "demo")),
        ("demo", {"quantize": "int8"}, ("quantize", "int8")),
    ],
)
def test_what_may_be_meant_is_the_engines_to_judge(
    model: str, options: dict[str, Any], means: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted: list[Any] = []
    monkeypatch.setattr(loading, "attach", lambda entry: entry)
    monkeypatch.setattr(loading, "adopt_or_start", lambda identity, *_, **__: wanted.append(identity))
    monkeypatch.setattr(machine, "DEV", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidia0").touch()
    loading.load(model, **options)
    assert getattr(wanted[0], means[0]) == means[1]


@pytest.mark.parametrize(
    ("file", "holds", "said"),
    [
        ("notes.txt", "", "The folder {} holds no config.json; give a folder saved by save_pretrained."),
        ("config.json", "{", "The configuration of {} cannot be read: config.json is not JSON"),
        ("m.gguf", "GGUF", "The folder {0} has GGUF files; give one of them: {0}/m.gguf."),
        ("adapter_config.json", '{"base_model_name_or_path": "a/b"}', "The folder {} holds an adapter of a/b and no"),
        ("w.bin", "", "{}/w.bin is a file; give the"),
    ],
)
def test_a_folder_that_is_no_model_is_refused_without_an_engine(
    file: str, holds: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_an_engine(monkeypatch)
    (tmp_path / file).write_text(holds)
    with pytest.raises((ModelNotFound, ModelRefused)) as refused:
        loading.load(tmp_path if said.startswith("The ") else tmp_path / file)
    assert str(refused.value).startswith(said.format(tmp_path))


def test_with_the_client_alone_the_kernel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spelling, "find_spec", lambda name: None if name in ("torch", "tokenizers") else object())
    monkeypatch.setattr(launcher, "running_engines", lambda: ())
    with pytest.raises(MissingDependency) as refused:
        loading.load("demo")
    assert str(refused.value) == (
        "An engine needs torch and tokenizers, which are not installed here: pip install djinn-jupyter."
    )


def test_an_engine_without_torch_says_what_to_install() -> None:
    code = """
import sys
sys.modules["torch"] = None
from djinn_jupyter.engine.__main__ import main
sys.exit(main(["--model", "demo"]))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "MissingDependency: An engine needs torch, which is not installed" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("files", "visible", "why"),
    [
        (("nvidia0", "nvidiactl", "nvidia-uvm"), None, None),
        (("dxg",), "0", None),
        (("nvidia0",), "", "CUDA_VISIBLE_DEVICES hides every GPU"),
        (("nvidia0",), "-1", "CUDA_VISIBLE_DEVICES hides every GPU"),
        (("nvidiactl", "nvidia-uvm"), None, "the system shows no GPU"),  # a driver, and no card in this container
        ((), None, "the system shows no GPU"),
    ],
)
def test_a_gpu_that_this_process_cannot_see_is_refused_with_the_reason(
    files: tuple[str, ...], visible: str | None, why: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "DEV", tmp_path)
    for name in files:
        (tmp_path / name).touch()
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.why_no_gpu() == why


def test_a_command_spells_its_own_options_and_leaves_the_arguments_of_python() -> None:
    options = argparse.Namespace(trust_remote_code=False, device_memory=None)
    said = "device_memory is 3; allow it with --trust-remote-code, in Python trust_remote_code=True."
    assert as_typed(options, said) == said.replace("device_memory", "--device-memory", 1)


SAME = (
    ("gpt2-small", "gpt2", "GPT2LMHeadModel"),
    ("gpt2", "openai-community/gpt2", "GPT2LMHeadModel"),
    ("google/gemma-3-1b-pt", "gemma-v3-1b-pt", "Gemma3ForCausalLM"),
    ("EleutherAI/pythia-70m", "/models/pythia-70m/", "GPTNeoXForCausalLM"),
)
PERHAPS = (
    ("gemma-2-2b", "google/gemma-2-2b-it", "Gemma2ForCausalLM"),
    ("meta-llama/Llama-3.2-1B", "/models/mine", "LlamaForCausalLM"),
    ("meta-llama/Llama-3-8B", "meta-llama/Llama-3.1-8B", "LlamaForCausalLM"),
    ("/scratch/run7", "/models/mine", "LlamaForCausalLM"),
    ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "/models/mine", "LlamaForCausalLM"),
)
ANOTHER = (
    ("pythia-70m", "gpt2", "GPT2LMHeadModel"),
    ("pythia-70m", "/models/mine", "GPT2LMHeadModel"),
    ("/models/gemma-2-2b", "/models/mine", "LlamaForCausalLM"),
    ("tiny-stories-33M", "demo", "LlamaForCausalLM"),
)


def note(named: str, here: str, architecture: str) -> str | None:
    served = msgspec.structs.replace(DESCRIPTION, name=here, architecture=architecture)
    return note_on(Path("folder"), "model_name", named, (), served)


def test_a_name_is_of_the_same_model_of_another_or_may_be() -> None:
    for named, here, architecture in SAME:
        assert note(named, here, architecture) is None
    for named, here, architecture in PERHAPS:
        assert note(named, here, architecture) == f"its files say that it was trained on {named}"
    for named, here, architecture in ANOTHER:
        with pytest.raises(UsageError, match=f"folder has model_name '{named}', and this engine serves {here} "):
            note(named, here, architecture)
