"""The memory available in a container: control groups of both versions, as the kernel's files show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from djinn_evaluation.machine import machine as reported
from djinn_jupyter import machine
from djinn_jupyter.engine.model.loading.load import load_model
from djinn_jupyter.engine.residency.residency import open_disk, open_host
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.engine.system.device import free_for_pages
from djinn_jupyter.errors import ModelDoesNotFit
from djinn_jupyter.link import doctor
from djinn_jupyter.machine import main_memory
from djinn_jupyter.units import spell_bytes
from tests.house.test_files import text_files

CPU = torch.device("cpu")
GIB = 1 << 30
UNLIMITED_1 = 9223372036854771712
V2 = "35 25 0:30 {top} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "35 25 0:30 {top} /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory"


class Tree:
    """A `proc` and a `sys` to be read in place of the machine's."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def process(self, groups: str, *mounts: str) -> None:
        self._write("proc/self/cgroup", groups)
        self._write("proc/self/mountinfo", "\n".join(["23 1 0:1 / / rw - overlay overlay rw,memory", *mounts]))

    def v2(self, group: str, limit: int | str, usage: int = 0, cached: int = 0) -> None:
        folder = f"sys/fs/cgroup{group}"
        self._write(f"{folder}/memory.max", f"{limit}\n")
        self._write(f"{folder}/memory.current", f"{usage}\n")
        self._write(f"{folder}/memory.stat", f"anon 5\ninactive_file {cached}\nactive_file 0\nshmem 99999999999\n")

    def v1(self, group: str, limit: int, usage: int = 0, cached: int = 0) -> None:
        folder = f"sys/fs/cgroup/memory{group}"
        self._write(f"{folder}/memory.limit_in_bytes", f"{limit}\n")
        self._write(f"{folder}/memory.usage_in_bytes", f"{usage}\n")
        self._write(f"{folder}/memory.stat", f"cache 1\ntotal_inactive_file 0\ntotal_active_file {cached}\n")

    def _write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def seen(tree: Tree) -> tuple[int, int]:
    found = main_memory(tree.root)
    assert found.machine_total == psutil.virtual_memory().total
    assert found.contained == (found.total < found.machine_total)
    return found.total, found.available


TOP = V2.format(top="/")
UNIFIED = TOP.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
GROUPS: dict[str, tuple[list[str], dict[str, tuple[Any, ...]], tuple[int, int]]] = {  # process, groups, what is seen
    "a container of version 2 sees its own group as the top": (["0::/\n", TOP], {"": (GIB, GIB // 2)}, (GIB, GIB // 2)),
    "pages that cache files can be had": (["0::/\n", TOP], {"": (GIB, GIB, GIB // 4)}, (GIB, GIB // 4)),
    "the tightest of nested groups counts, and each for itself": (
        ["0::/slice/job/step\n", TOP],
        {"/slice": (GIB, GIB - 100), "/slice/job": (GIB // 2,), "/slice/job/step": ("max",), "/slice/other": (5,)},
        (GIB // 2, 100),
    ),
    "a group outside of what is mounted is bounded by the mount": (
        ["0::/../elsewhere\n", V2.format(top="/box")],
        {"": (GIB,)},
        (GIB, GIB),
    ),
    "more than the limit in use leaves nothing": (["0::/\n", TOP], {"": (GIB, GIB + 4096)}, (GIB, 0)),
    "a container of version 1 sees the host's path and its own mount": (
        ["4:memory:/docker/ab\\x2dc\n0::/\n", V1.format(top="/docker/ab\\134x2dc")],
        {"": (GIB, GIB // 2, GIB // 8)},
        (GIB, GIB // 2 + GIB // 8),
    ),
    "nested groups of version 1 beside a version 2 without memory": (
        ["5:cpu,cpuacct:/c\n4:memory:/a/b\n0::/\n", V1.format(top="/"), UNIFIED],
        {"": (UNLIMITED_1,), "/a": (GIB, 7), "/a/b": (UNLIMITED_1,)},
        (GIB, GIB - 7),
    ),
}


@pytest.mark.parametrize("case", GROUPS)
def test_a_container_has_what_its_groups_leave(tree: Tree, case: str) -> None:
    process, groups, found = GROUPS[case]
    tree.process(*process)
    for name, given in groups.items():
        (tree.v1 if "version 1" in case else tree.v2)(name, *given)
    assert seen(tree) == found


@pytest.mark.parametrize("limit", ["max", UNLIMITED_1])
def test_without_a_limit_there_is_what_the_machine_has(tree: Tree, limit: int | str) -> None:
    tree.process("0::/\n", V2.format(top="/"))
    tree.v2("", limit=limit)
    total, available = seen(tree)
    assert total == psutil.virtual_memory().total
    assert 0 < available <= total


def test_a_process_that_is_moved_to_another_group_has_what_that_one_has(tree: Tree) -> None:
    tree.process("0::/wide\n", V2.format(top="/"))
    tree.v2("/wide", limit=2 * GIB)
    tree.v2("/narrow", limit=GIB)
    assert main_memory(tree.root).total == 2 * GIB
    tree.process("0::/narrow\n", V2.format(top="/"))
    assert main_memory(tree.root).total == GIB


def test_a_limit_that_is_changed_is_seen_at_the_next_reading(tree: Tree) -> None:
    tree.process("0::/\n", V2.format(top="/"))
    for limit in (2 * GIB, UNLIMITED_1, GIB):
        tree.v2("/", limit=limit)
        assert main_memory(tree.root).total == min(limit, main_memory(tree.root).machine_total)


def test_a_system_without_control_groups_has_what_the_machine_has(tmp_path: Path) -> None:
    assert main_memory(tmp_path).total == psutil.virtual_memory().total


@pytest.fixture
def contained(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process in a container of 1 GiB, half of which is in use."""
    monkeypatch.setattr(machine, "_limits", lambda root, machine: iter([(GIB, GIB // 2)]))


@pytest.mark.usefixtures("contained")
def test_what_an_engine_may_take_when_nobody_said_is_of_the_container(tmp_path: Path) -> None:
    host, disk = (opened(EngineConfig(model="demo", data_folder=tmp_path), CPU) for opened in (open_host, open_disk))
    assert host.limit == GIB // 4
    assert disk.limit <= GIB
    assert free_for_pages(CPU) == GIB * 3 // 8


@pytest.mark.usefixtures("contained")
def test_doctor_and_reports_tell_of_the_container() -> None:
    there_is = spell_bytes(psutil.virtual_memory().total)
    said = f"512 MiB of 1.00 GiB host memory available, held to that of {there_is} by its container."
    assert said in [finding.sentence for finding in doctor._memory()]
    assert ("memory", "1.00 GiB") in reported()


@pytest.mark.usefixtures("contained")
def test_weights_are_not_drawn_where_they_have_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(model="demo", random_weights=True, device="cpu")
    assert load_model(config).model.num_parameters()
    monkeypatch.setattr(machine, "_limits", lambda root, machine: iter([(GIB, 1 << 20)]))
    with pytest.raises(ModelDoesNotFit, match=r"takes 7.19 MiB of main memory, and 1.00 MiB are available"):
        load_model(config)


def test_nobody_else_asks_the_system_how_much_memory_there_is() -> None:
    asking = {path for path, text in text_files() if path.endswith(".py") and "virtual_memory" in text}
    assert {path for path in asking if not path.startswith("tests/")} == {"djinn_jupyter/machine.py"}
