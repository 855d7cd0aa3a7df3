"""The forms of each magic, for the property over options: the state that a line finds, and the line. Every option of
its parser is tried beside each of them."""

from __future__ import annotations

import argparse
from typing import Any, Final

import numpy as np

METRIC: Final = "--metric \"logit(' Rome') - logit(' Paris')\""
SWEPT: Final = f"resid_post {METRIC} --over layer"
RUN: Final = "%djinn_run The capital of France is"

# The cell before the line. In each there is a stopped session `other`, and `theirs`, which another kernel holds.
STATES: Final = {
    "idle": "",
    "stopped": f"%djinn_break 4\n{RUN}",
    "ended": RUN,
    "ruled": f"%djinn_steer 4 scale 0.5\n%djinn_watch resid_post.3\n{RUN}",
    "scored": f"{RUN}\n%djinn_edges --from ids {METRIC} -o found",
    "swept": f"{RUN}\n%djinn_sweep {SWEPT} --from ids -o grid",
    "rows": f"%djinn_break 4\n{RUN}",  # where `paris/0` is another kernel's
    "recomputed": "",
    "logged": "",
    "charted": "",
    "studied": f"{RUN}\n%djinn_edges --from ids {METRIC} -o found\n%djinn_study <out> --add found --title edges",
    "collected": "%djinn_collect resid_post.4 --prompts prompts --to <out> -o acts",
    "added": "%djinn_add_module sae <sae> --at resid_post.4\n%djinn_add_adapter sql <sql>",
}

Form = tuple[str, str]


def forms(state: str, *lines: str) -> tuple[Form, ...]:
    return tuple((state, line) for line in lines)


FORMS: Final[dict[str, tuple[Form, ...]]] = {
    "accept": forms("recomputed", ""),
    "adapter": forms("added", "", "off"),
    "add_adapter": forms("idle", "sql <sql>"),
    "add_module": forms("idle", "sae <sae> --at resid_post.4", "sae <sae>"),
    "add_transcoders": forms("idle", "tc <clt> --point mlp_in", "tc <clt>"),
    "attribute": forms("ended", SWEPT, f"{SWEPT} --from ids", f"{SWEPT} --prompts pairs", f"{SWEPT} --edit resample"),
    "back": forms("stopped", "", "--list", "--layer", "--token"),
    "break": forms("idle", "4") + forms("stopped", "4"),
    "breaks": forms("stopped", "", "--off 1", "--on 1"),
    "checkpoint": forms("stopped", "", "new", "kept", "kept --drop"),
    "circuit": forms(
        "scored",
        "found --edges 3",
        "found --curve",
        "found --acdc 0.001",
        "found --faithfulness 0.5",
        "found --threshold 1",
    ),
    "clear": forms("stopped", ""),
    "close": forms("stopped", "", "other", "theirs"),
    "collect": forms(
        "idle", "resid_post.4 --prompts prompts --to <out>", "resid_post.4 --prompts prompts --to <out> --exact"
    ),
    "debugger": forms("idle", ""),
    "diff": forms("stopped", "other", "other --layers") + forms("ended", "other"),
    "direct": forms("idle", f"{METRIC} The capital", f"{METRIC} --ids ids"),
    "edges": forms("ended", f"--from ids {METRIC}", f"--prompts pairs {METRIC}", f"--prompts pairs {METRIC} --exact"),
    "edit": forms(
        "stopped",
        "scale 0.5",
        "add vec",
        "patch_from other",
        "scale 0.5 --effect",
        "\nh *= 2",
        "--revert",
        "--on 1",
        "--off 1",
    ),
    "fork": forms("stopped", "new", "new add vec --site v.5", "new patch_from other --site v.5", "other")
    + forms("stopped", "other --fresh", "theirs --fresh"),
    "graph": forms("ended", "", "--from ids"),
    "heads": forms("ended", "", "--patterns", "--prompts prompts", "--page --head 1.2"),
    "inspect": forms("stopped", "", "pattern.2", "-o kept"),
    "lens": forms("stopped", "", "--layers", "mlp_out --token x", "z --token x")
    + forms("ended", "--text", "resid_post.* --text --token x"),
    "load": forms("idle", "demo", "demo --fresh --session mine", "demo --session theirs", "demo --at host"),
    "log": forms("logged", "", "--request 3f2a9c01"),
    "loss": forms("ended", "", "--prompts prompts", "--text-from text"),
    "move": forms("idle", "--to 2"),
    "name": forms("added", "sae.4", "sae.4[1] soup", "sae.4[1] the word"),
    "nap": forms("idle", ""),
    "pause": forms("stopped", "other"),
    "path": forms(
        "ended",
        f"z -> logits --from ids {METRIC}",
        f"z -> logits --prompts pairs {METRIC}",
        f"z -> logits --edit zero {METRIC}",
    )
    + forms("swept", f"z -> logits --edit resample --exact {METRIC}"),
    "remove_adapter": forms("added", "sql"),
    "remove_module": forms("added", "sae"),
    "reproduce": forms("scored", "found"),
    "rest": forms("idle", "5"),
    "restore": forms("stopped", "kept", "kept --as new", "kept --as other", "kept --as theirs --replace"),
    "resume": forms("stopped", "", "--effect", "--samples 2") + forms("rows", "--samples 2"),
    "run": forms(
        "idle",
        "The capital",
        "--samples 2 --temperature 1 The capital",
        "--ids ids",
        "--text-from texts",
        "--continue",
        "--temperature 1 The capital",
        "--effect The capital",
    )
    + forms("rows", "--samples 2 --temperature 1 hi")
    + forms("stopped", "The capital")
    + forms("ruled", "--coefs 0,1 The capital", f"--coefs 0,1 {METRIC} The capital"),
    "sessions": forms("stopped", ""),
    "share": forms("idle", "--with ada --read", "--with ada --write", "--with ada --none", "--with ada"),
    "sleep": forms("idle", ""),
    "splice": forms("added", "sae.4 --prompts prompts"),
    "status": forms("idle", ""),
    "steer": forms("idle", "4 scale 0.5", "4 add vec", "4 patch_from other --positions 0:2")
    + forms("ruled", "", "--off 1", "--on 1"),
    "step": forms("stopped", "", "--token", "--point"),
    "stop": forms("idle", "", "--force"),
    "swap": forms("idle", "out", "in"),
    "study": forms("studied", "<out>", "<out> --add found", "<out> --note words", "<out> --check", "<out> --reproduce"),
    "sweep": forms(
        "ended",
        f"{SWEPT} --from ids",
        f"{SWEPT} --prompts pairs",
        f"{SWEPT} --noise 0:2",
        f"{SWEPT} --edit zero --exact",
    )
    + forms("swept", f"{SWEPT} --edit resample"),
    "tree": forms("stopped", ""),
    "feature": forms("idle", "sae.4[17]") + forms("collected", "sae.4[17] --over acts"),
    "text": forms("ended", "", f"{METRIC} --by entropy", "--site resid_post.1 --along vec", "--text-from text"),
    "unload": forms("idle", ""),
    "unsteer": forms("ruled", ""),
    "use": forms("stopped", "", "other", "new --new", "theirs"),
    "vram": forms("idle", "", "--of trace") + forms("charted", "stop"),
    "watch": forms("ruled", "", "resid_post.3", "resid_post.3 --show", "resid_post.3 --hover", "resid_post.3 --off"),
    "weight": forms("idle", "W_U"),
    "why": forms("ended", "1.2 --key 0"),
    "where": forms("stopped", "", "--effect") + forms("ended", "") + forms("idle", ""),
}

# By where the option is kept; others have a value by their type.
VALUES: Final = {
    "a": "other", "adapter": "sql", "align": "-1", "beside": "2", "clean": "ids2", "coefs": "0,1",
    "collection": "<out>", "columns": "0", "corrections": "attention", "correct": "attention", "corrupted": "ids2",
    "direction": "vec", "edit": "zero", "from_positions": "0", "from_site": "resid_post.3", "ids": "ids",
    "key": "mine", "keep": "kept_here", "known": "known", "line": "ids2", "metric": "\"logit(' a')\"",
    "metrics": "\"logit(' a')\"", "model": "demo", "module": "tc2", "name": "other", "names": "other", "noise": "0:2",
    "number": "1", "of": "trace", "off": "2", "on": "2", "other": "beside", "over": "layer,position", "path": "z",
    "person": "ada", "point": "mlp_in", "positions": "-1", "prompt": "words", "prompts": "pairs",
    "request": "3f2a9c01", "rows": "0", "rule": "1", "session": "other", "site": "resid_post.3",
    "sites": "resid_post.4", "so_far": "grid", "text_from": "text", "to": "2", "top": "1", "when": "step == 0",
    "save": "<figure>", "window": "2", "count": "2", "b": "other", "add": "vecs", "title": "another",
    "shard_prompts": "1",
}  # fmt: skip


OWN_VALUES: Final = {
    ("adapter", "name"): "sql",
    ("name", "file"): "<names>",
    ("graph", "group"): '"both=embed @1"',
    ("steer", "on"): "prompt",
    ("steer", "from_positions"): "2:4",
    ("direct", "over"): "layer",
    ("lens", "token"): "' Paris'",
    ("lens", "positions"): "2",
    ("heads", "prompts"): "prompts",
    ("heads", "head"): "1.2",
    ("feature", "over"): "nowhere",
    ("feature", "examples"): "1",
    ("why", "head"): "1.2",
    ("why", "key"): "0",
    ("why", "features"): "sae.4",
    ("text", "by"): "entropy",
    ("text", "along"): "vec",
    ("loss", "prompts"): "prompts",
}


def variables() -> dict[str, Any]:
    """Return what the lines name."""
    return {
        "ids": [1, 2, 3],
        "ids2": [1, 2, 5],
        "vec": np.ones(256, np.float32),
        "text": "some text",
        "texts": ["one", "two"],
        "prompts": [[1, 2, 3], [4, 5, 6]],
        "pairs": [([1, 2, 3], [1, 2, 4]), ([1, 2, 3], [1, 2, 6])],
        "vecs": {"a": [1.0, 2.0]},
        "known": [("embed", "logits")],
    }


def with_option(name: str, line: str, one: argparse.Action) -> str:
    """Return the line with this option, and a value of its own type."""
    if one.nargs == 0:
        return f"{one.option_strings[-1]} {line}"
    by_type = {int: "3", float: "0.5"}.get(one.type, "else")
    value = OWN_VALUES.get((name, one.dest)) or VALUES.get(one.dest) or next(iter(one.choices or ()), by_type)
    if not one.option_strings:
        return f"{line} {value}"
    flag = one.option_strings[-1]
    return f"{line} {flag} {value}" if one.nargs == "+" else f"{flag} {value} {line}"
