"""`make side-by-side`: draws our views and those of other tools from the same numbers, for docs/side_by_side.md.

It writes one WebP picture of each view to evaluation/results/side_by_side. All are taken in the same Chromium. A script
that another tool's page loads from elsewhere is answered from an npm package.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import bertviz
import circuitsvis
import numpy as np
import plotly.express as px
import torch
from PIL import Image
from playwright.sync_api import Page, Route

import djinn_jupyter as dj
from djinn_evaluation import CHECKOUT
from djinn_jupyter import demo
from djinn_jupyter.widgets.views import dose_response_view
from tests.browser.chromium import chromium

PICTURES: Final = CHECKOUT / "evaluation" / "results" / "side_by_side"
SCRIPTS: Final = {  # by the end of their addresses, which differ in version from the packages
    "require.min.js": "requirejs/require.js",
    "d3.min.js": "d3/dist/d3.min.js",
    "jquery.min.js": "jquery/dist/jquery.min.js",
}
WIDTH, HEIGHT = 680, 800
SETTLED_MILLISECONDS: Final = 2000  # in which their animations end
PROMPT: Final = "The capital of France is"
DOSES: Final = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
TWIN: Final = "The capital of Italy is"
ANSWER: Final = "logit(' Paris') - logit(' Rome')"
HEAD: Final = (5, 0)
FEATURE: Final = "sae.4[436]"
DIVERGING: Final = {"color_continuous_scale": "RdBu", "color_continuous_midpoint": 0}


@dataclass(frozen=True)
class Drawn:
    """The HTML of a subject as a tool draws it."""

    subject: str
    tool: str
    html: str


def ours(subject: str, shown: Any) -> Drawn:
    """Return the card of a result, as a saved notebook has it."""
    return Drawn(subject, "djinn", shown._repr_mimebundle_()["text/html"])


def plotly(subject: str, figure: Any) -> Drawn:
    """Return a figure of plotly express, with its script."""
    return Drawn(subject, "plotly", figure.to_html(full_html=False, default_height="450px"))


class Subjects:
    """The subjects, in the order in which they are drawn; each is drawn by several tools."""

    def __init__(self, engine: dj.RemoteEngine) -> None:
        self._engine = engine
        self._session = engine.session("beside", fresh=True)

    def stop(self) -> Iterator[Drawn]:
        """A tool without cards shows a tensor, as PyTorch prints it."""
        self._session.breakpoint(4)
        yield ours("stop", self._session.run(PROMPT, max_new_tokens=6))
        values = torch.from_numpy(self._session.inspect("resid_post.4").values.copy())
        yield Drawn("stop", "pytorch", f"<pre>{values!r}</pre>")
        self._session.clear()
        self._session.resume(free=True)

    def text(self) -> Iterator[Drawn]:
        text = self._session.text()
        yield ours("text", text)
        drawn = circuitsvis.tokens.colored_tokens(list(text.texts), np.nan_to_num(text.of(text.by)))
        yield Drawn("text", "circuitsvis", drawn._repr_html_())

    def lens(self) -> Iterator[Drawn]:
        lens = self._session.text_lens()
        yield ours("lens", lens)
        best = lens.of("top 1")
        words = [[lens.predicted(site, at)[0].text for at in range(best.shape[1])] for site in range(len(best))]
        figure = px.imshow(best, x=numbered(lens.texts), y=list(lens.sites), zmin=0, zmax=1)
        yield plotly("lens", figure.update_traces(text=words, texttemplate="%{text}"))

    def attention(self) -> Iterator[Drawn]:
        patterns = self._session.patterns()
        layer, head = HEAD
        tokens = list(patterns.texts)
        yield ours("attention", patterns.choose(f"{layer}.{head}"))
        drawn = circuitsvis.attention.attention_heads(patterns.values[layer], tokens)
        yield Drawn("attention", "circuitsvis", drawn._repr_html_())
        layers = [torch.from_numpy(values.copy())[None] for values in patterns.values]
        drawn = bertviz.head_view(layers, tokens, layer=layer, heads=[head], html_action="return")
        yield Drawn("attention", "bertviz", drawn.data)

    def sweep(self) -> Iterator[Drawn]:
        grid = dj.sweep(
            self._engine, clean=TWIN, corrupted=PROMPT, site="resid_post", over=("layer", "position"), metric=ANSWER
        )
        yield ours("sweep", grid)
        tokens = numbered(self._session.text().texts[: grid.values.shape[-1]])
        yield plotly("sweep", px.imshow(grid.values - grid.corrupted, x=tokens, **DIVERGING))

    def attribution(self) -> Iterator[Drawn]:
        self._session.breakpoint("resid_post.7")
        self._session.run(PROMPT)
        found = self._session.attribute(" Paris", " Rome", heads=True)
        yield ours("attribution", found)
        parts = found.columns()
        names = [
            " ".join(str(one) for one in row if one is not None) for row in zip(*list(parts.values())[:3], strict=True)
        ]
        yield plotly("attribution", px.bar(x=numbered(names), y=parts["value"]))
        self._session.clear()

    def dose(self) -> Iterator[Drawn]:
        self._session.breakpoint(4)
        self._session.run(PROMPT)
        direction = self._session.inspect("resid_post.4", positions=-1).values[0]
        self._session.clear()
        self._session.steer("resid_post.4", dj.add(direction))
        rows = self._session.run([PROMPT], coefs=DOSES, max_new_tokens=0)
        answers = [row.session.metrics(ANSWER)[0] for row in rows]
        self._session.unsteer()
        card = dose_response_view(
            DOSES, {ANSWER: answers}, dose="coefficient", response="logit difference", title="Dose-response"
        )
        yield Drawn("dose", "djinn", card.html)
        yield plotly("dose", px.line(x=DOSES, y=answers, markers=True))

    def graph(self) -> Iterator[Drawn]:
        self._engine.add_transcoders("tc", demo.TRANSCODERS_PATH)
        graph = dj.attribution_graph(self._engine, PROMPT, ANSWER)
        yield ours("graph", graph)

    def feature(self) -> Iterator[Drawn]:
        self._engine.add_module("sae", demo.SAE_PATH)
        documents = json.loads(demo.DOCUMENTS_PATH.read_text())["ids"][:200]
        with tempfile.TemporaryDirectory() as folder:
            page = self._engine.feature(FEATURE, over=self._engine.collect(documents, "sae.4", to=folder))
            yield ours("feature", page)
            first = page.examples[0]
        values = np.nan_to_num(np.array(first.values, dtype=np.float32))[:, None, None]
        drawn = circuitsvis.activations.text_neuron_activations(list(first.texts), values, "Layer", "Feature")
        yield Drawn("feature", "circuitsvis", drawn._repr_html_())

    def __iter__(self) -> Iterator[Drawn]:
        draw = (
            *(self.stop, self.text, self.lens, self.attention, self.sweep),
            *(self.attribution, self.dose, self.graph, self.feature),
        )
        return chain.from_iterable(one() for one in draw)


def numbered(texts: Sequence[str]) -> list[str]:
    """Return tokens with their positions: plotly takes equal labels for one."""
    return [f"{at} {text}" for at, text in enumerate(texts)]


def answer(route: Route) -> None:
    """Answer a script from the npm packages of this environment; refuse all else."""
    for name, file in SCRIPTS.items():
        if route.request.url.endswith(f"/{name}"):
            return route.fulfill(path=Path(sys.prefix) / "node_modules" / file)
    return route.abort()


def photograph(page: Page, drawn: Drawn) -> None:
    """Write the picture of a view, as high as it is."""
    page.route(lambda url: url.startswith("http"), answer)
    page.set_content(f"<!doctype html><meta charset=utf-8><main style='display: flow-root'>{drawn.html}</main>")
    page.wait_for_timeout(SETTLED_MILLISECONDS)
    picture = Image.open(io.BytesIO(page.locator("main").screenshot()))
    picture.save(PICTURES / f"{drawn.subject}-{drawn.tool}.webp", lossless=True)


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for drawn in Subjects(dj.load("demo")):
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            photograph(page, drawn)
            page.close()


if __name__ == "__main__":
    main()
