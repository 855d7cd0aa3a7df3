"""The folder that each module goes to when the house is made small, by rules; and the imports that then run back up.

    python -m tests.census.folders      writes folders.txt (old module, new folder) and arrows.txt (imports to mend)

The rule with the longest name before its star decides. A row of `LAYERS` may import the rows below it and nothing of
its own row but its own folder; the imports of all modules are parsed, those for types and in functions too.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.house.import_graph import circles, import_graph

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
PACKAGE: Final = "djinn_jupyter"
TABLE: Final = HERE / "folders.txt"
ARROWS: Final = HERE / "arrows.txt"

# New folder: old modules, without the package's name; a star at the end is for all that begin so.
RULES: Final = {
    "(top)": "_version amounts described digits errors extensions file_stamps former_files fsync machine model_files "
    "moments options plain_files sampling shard_digests verbs written_aside module_files/field_table",
    # What a person imports: it says in words where each name is, and for types only it imports all of them.
    "face": "__init__",
    "api": "client/*",
    "wire": "wire/*",
    "link": "client/connection/* client/engines/* client/given_paths client/waiting",
    "engine/loop": "engine/* engine/requests/* engine/scheduling/*",
    # The tree of HOUSE.md has no folder for the machine underneath, which every folder of the engine needs. The
    # sessions that are on the device know sessions, which know memory: residency lies above both.
    "engine/system": "engine/system/* engine/log/* engine/config",
    "engine/memory": "engine/memory/*",
    "engine/residency": "engine/residency/* engine/process_memory",
    "engine/model": "engine/model/*",
    # A pass applies edits, conditions and watches at its taps: they lie with it and below sessions.
    "engine/passes": "engine/forward/* engine/interventions/* engine/wavefront/*",
    "engine/session": "engine/session/* engine/scheduling/jobs engine/scheduling/running_time",
    "engine/store": "engine/persistence/*",
    # The composition root joins the rest.
    "engine/process": "engine/process/* engine/startup/* engine/__main__ engine/engine engine/parts",
    "magics": "magics/*",
    "widgets": "widgets/*",
    "server": "server/*",
    "cli": "cli/*",
    "demo": "demo/*",
    # What is added to a model.
    "modules": "client/adapters client/added_modules client/named_models magics/adapting magics/adding widgets/added",
    "modules/request": "module_files/* wire/adapters wire/added_modules wire/module_form",
    "modules/engine": "engine/forward/processed_values engine/model/added/* engine/model/hooks/feature_layout "
    "engine/persistence/kept_* engine/requests/adapters engine/requests/added_modules engine/session/adapters "
    "engine/session/added_* engine/session/fitting",
    "modules/training": "client/training/* training/*",
    # Others than one person on this machine.
    "remote": "cli/cluster cli/entry cli/hub cli/keys cli/people client/connection/arrival* "
    "client/connection/greeting client/connection/handshake client/connection/line* client/connection/road "
    "client/connection/so_far client/connection/upload* client/engines/afar client/engines/attachments "
    "client/engines/attended client/engines/cluster client/engines/hub client/engines/keys client/engines/ssh "
    "client/moving cluster/* hub/* magics/receiving widgets/receiving",
    "remote/request": "wire/access wire/found_keys wire/hub wire/keys wire/moving wire/people wire/pieces wire/quotas "
    "wire/sharing",
    "remote/engine": "engine/persistence/claim_files engine/persistence/lease* engine/persistence/move_* "
    "engine/persistence/running_times engine/persistence/store/* engine/process/accept_gate engine/process/admission "
    "engine/process/connections engine/process/event_ring engine/process/kept_replies engine/process/large_requests "
    "engine/process/lines engine/process/metrics_of_persons engine/process/own_folders engine/process/persons "
    "engine/process/presence engine/process/replies_in_pieces engine/process/requests_in_pieces engine/process/unread "
    "engine/requests/moving engine/requests/people engine/requests/quotas engine/requests/sharing "
    "engine/residency/quotas engine/session/moving engine/session/shares",
    "parallel": "engine/forward/decode_graphs engine/model/hooks/layer_graph engine/parallel/* engine/startup/graphs "
    "engine/startup/rank engine/system/cuda_graphs",
    "editors": "cli/dap dap/* magics/debugging magics/native_panel/*",
    "bridges": "integrations/*",
}

# From the top down: a folder imports those in rows below its own. Engine and kernel meet on the wire and on requests.
LAYERS: Final = (
    "engine/process",
    "bridges",
    "editors",
    "remote remote/engine parallel",
    "methods/graphs",
    "methods/circuits",
    "methods/paths",
    "methods/attribution",
    "methods/direct methods/heads",
    "modules/training",
    "methods/sweep",
    "methods/datasets",
    "modules",
    "methods/common methods",
    "methods/graphs/engine",
    "methods/circuits/engine",
    "methods/attribution/engine",
    "methods/paths/engine",
    "methods/sweep/engine",
    "methods/direct/engine methods/heads/engine methods/datasets/engine",
    "methods/common/engine",
    "modules/engine",
    "cli server magics",
    "face",
    "widgets",
    "api",
    "link",
    "engine/loop",
    "engine/store",
    "engine/residency",
    "engine/session",
    "engine/passes",
    "engine/model",
    "engine/memory",
    "engine/system",
    "remote/request",
    "methods/graphs/request methods/circuits/request methods/heads/request methods/direct/request",
    "methods/datasets/request",
    "methods/sweep/request",
    "modules/request",
    "demo",
    "wire",
    "(top)",
)
LEVEL: Final = {folder: -row for row, folders in enumerate(LAYERS) for folder in folders.split()}
OUTSIDE: Final = ("methods", "modules", "remote", "parallel", "editors", "bridges", "demo")
TORCH: Final = ("torch", "transformers", "safetensors", "tokenizers")
TORCH_IN: Final = ("engine", "parallel", "bridges", "modules/training")


def place(module: str) -> str:
    """Return the new folder of a module such as `djinn_jupyter.engine.turns`; of one that lies there already, that.
    Raises KeyError."""
    name = module.removeprefix(f"{PACKAGE}.").replace(".", "/") if module != PACKAGE else "__init__"
    fitting = [
        (len(rule.rstrip("*")), not rule.endswith("*"), folder)
        for folder, rules in RULES.items()
        for rule in rules.split()
        if rule == name or (rule.endswith("*") and f"{name}/".startswith(rule[:-1]))
    ]
    moved = [(len(folder) + 1, False, folder) for folder in LEVEL if f"{name}/".startswith(f"{folder}/")]
    if not (fitting := fitting + moved):
        raise KeyError(f"No rule of tests/census/folders.py says where {module} goes.")
    return max(fitting)[2]


def is_core(module: str) -> bool:
    """Return whether a module belongs to the core: to none of the folders that plug into it."""
    return place(module).partition("/")[0] not in OUTSIDE


def on_the_engines_side(folder: str) -> bool:
    return folder.startswith(("engine/", "parallel")) or folder.endswith("/engine")


def is_met_on(folder: str) -> bool:
    """Return whether both sides may import a folder: the wire, the requests of methods, and what lies below them."""
    return folder in ("wire", "(top)", "demo") or folder.endswith("/request")


def breach(importer: str, imported: str) -> str | None:
    """Return the contract that an import between two new folders breaks, in words; None where it may be."""
    if importer == imported or importer == "engine/process":
        return None
    if importer == "face" and not on_the_engines_side(imported):
        return None
    if imported == "engine/process":
        return "only the composition root knows what it joins"
    here, there = on_the_engines_side(importer), on_the_engines_side(imported)
    if here != there and not (is_met_on(importer) or is_met_on(imported)):
        return "engine and api meet on the wire"
    if is_outside(imported) and not is_outside(importer):
        return "the core imports nothing that plugs into it"
    return "imports run one way" if LEVEL[imported] >= LEVEL[importer] else None


def is_outside(folder: str) -> bool:
    return folder.partition("/")[0] in OUTSIDE and folder != "demo"


def broken(graph: Mapping[str, frozenset[str]]) -> dict[tuple[str, str], list[tuple[str, str, str]]]:
    """Return the imports that break a contract, (importer, imported, contract), by the new folders of both."""
    found: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for module, others in sorted(graph.items()):
        for other in sorted(others):
            pair = place(module), place(other)
            if (words := breach(*pair)) is not None:
                found.setdefault(pair, []).append((module, other, words))
    return found


def torch_outside(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield each module that imports torch, or what loads it, from a folder where it may not, with the folder."""
    for path in sorted((root / PACKAGE).rglob("*.py")):
        names = {name for node in ast.walk(ast.parse(path.read_text())) for name in _imported(node)}
        folder = place(_module(path, root))
        allowed = on_the_engines_side(folder) or folder.startswith(TORCH_IN)
        if names & set(TORCH) and not allowed:
            yield _module(path, root), folder


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [(node.module or "").partition(".")[0]] if isinstance(node, ast.ImportFrom) else []


def _module(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def folder_circles(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Return the circles between new folders that are left when the broken imports are gone, and those of the face,
    which are for types alone."""
    folders: dict[str, set[str]] = {place(module): set() for module in graph}
    for module, others in ((one, others) for one, others in graph.items() if place(one) != "face"):
        pairs = {(place(module), place(other)) for other in others}
        folders[place(module)] |= {there for here, there in pairs if here != there and breach(here, there) is None}
    return circles({here: frozenset(there) for here, there in folders.items()})


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    graph = import_graph(ROOT / PACKAGE)
    TABLE.write_text("".join(f"{module} -> {place(module)}\n" for module in sorted(graph)))
    ARROWS.write_text("".join(_told(broken(graph))) + "".join(f"torch: {m} in {f}\n" for m, f in torch_outside()))


def _told(found: Mapping[tuple[str, str], list[tuple[str, str, str]]]) -> Iterator[str]:
    for (here, there), imports in sorted(found.items()):
        yield f"# {here} -> {there}: {imports[0][2]}\n"
        yield from (f"{module} -> {other}\n" for module, other, _ in imports)
        yield "\n"


if __name__ == "__main__":
    main()
