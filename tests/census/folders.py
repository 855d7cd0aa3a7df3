"""The folders of the package, which of them each may import, and the imports that break that.

    python -m tests.census.folders      writes arrows.txt, the imports that are still to be mended

A row of `LAYERS` may import the rows below it and nothing of its own row but its own folder; the imports of all modules
are parsed, those for types and in functions too.
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
ARROWS: Final = HERE / "arrows.txt"

# From the top down: a folder imports those in rows below its own. Engine and kernel meet on the wire and on requests.
LAYERS: Final = (
    "engine/process",
    "integrations",
    "editors",
    "remote remote/engine parallel",
    "methods/graphs methods/why",
    "methods/circuits",
    "methods/paths",
    "methods/attribution",
    "methods/direct methods/heads methods/text methods/features",
    "modules/training",
    "methods/sweep",
    "methods/datasets",
    "modules",
    "methods/common methods",
    "methods/why/engine",
    "methods/graphs/engine",
    "methods/circuits/engine",
    "methods/attribution/engine",
    "methods/paths/engine",
    "methods/sweep/engine",
    "methods/features/engine",
    "methods/direct/engine methods/heads/engine methods/text/engine methods/datasets/engine",
    "methods/common/engine",
    "modules/engine",
    "cli server magics",
    "face",
    "widgets",
    "api",
    "link",
    "engine/requests",
    "engine/loop",
    "engine/store",
    "engine/residency",
    "engine/session",
    "engine/passes",
    "engine/model",
    "engine/memory",
    "engine/system",
    "methods/graphs/request methods/circuits/request methods/heads/request methods/direct/request methods/text/request",
    "methods/features/request",
    "methods/why/request",
    "methods/datasets/request",
    "methods/sweep/request",
    "modules/files",
    "demo",
    "wire",
    "(top)",
)
LEVEL: Final = {folder: -row for row, folders in enumerate(LAYERS) for folder in folders.split()}
OUTSIDE: Final = ("methods", "modules", "remote", "parallel", "editors", "integrations", "demo")
TORCH: Final = ("torch", "transformers", "tokenizers")
TORCH_IN: Final = ("engine", "parallel", "integrations", "modules/training")


def place(module: str) -> str:
    """Return the folder of a module such as `djinn_jupyter.engine.loop.turns`, by the longest row of `LAYERS`."""
    name = module.removeprefix(PACKAGE).removeprefix(".").replace(".", "/")
    if name in ("", "engine", "engine/__main__"):  # what a person imports, and what starts an engine
        return "engine/process" if name else "face"
    return max((folder for folder in LEVEL if f"{name}/".startswith(f"{folder}/")), key=len, default="(top)")


def is_core(module: str) -> bool:
    """Return whether a module belongs to the core: to none of the folders that plug into it."""
    return place(module).partition("/")[0] not in OUTSIDE


def on_the_engines_side(folder: str) -> bool:
    return folder.startswith(("engine/", "parallel")) or folder.endswith("/engine")


def is_met_on(folder: str) -> bool:
    """Return whether both sides may import a folder: the wire, the requests of methods, and what lies below them."""
    return folder in ("wire", "modules/files", "(top)", "demo") or folder.endswith("/request")


def breach(importer: str, imported: str) -> str | None:
    """Return the contract that an import between two folders breaks, in words; None where it may be."""
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
        source = path.read_text()
        if not any(name in source for name in TORCH):
            continue
        names = {name for node in ast.walk(ast.parse(source)) for name in _imported(node)}
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
    """Return the circles between folders that are left when the broken imports are gone, and those of the face,
    which are for types alone."""
    folders: dict[str, set[str]] = {place(module): set() for module in graph}
    for module, others in ((one, others) for one, others in graph.items() if place(one) != "face"):
        pairs = {(place(module), place(other)) for other in others}
        folders[place(module)] |= {there for here, there in pairs if here != there and breach(here, there) is None}
    return circles({here: frozenset(there) for here, there in folders.items()})


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    graph = import_graph(ROOT / PACKAGE)
    ARROWS.write_text("".join(_told(broken(graph))) + "".join(f"torch: {m} in {f}\n" for m, f in torch_outside()))


def _told(found: Mapping[tuple[str, str], list[tuple[str, str, str]]]) -> Iterator[str]:
    for (here, there), imports in sorted(found.items()):
        yield f"# {here} -> {there}: {imports[0][2]}\n"
        yield from (f"{module} -> {other}\n" for module, other, _ in imports)
        yield "\n"


if __name__ == "__main__":
    main()
