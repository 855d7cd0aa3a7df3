"""The magic of a feature's page."""

from __future__ import annotations

from argparse import Namespace

from IPython.core.magic import magics_class

from djinn_jupyter.magics.parsing import HOVER, KEEP, SAVE, Group, given, option, verb
from djinn_jupyter.methods.datasets.api.activations import Activations
from djinn_jupyter.methods.features.api import page
from djinn_jupyter.methods.features.card import page_view


@magics_class
class FeatureMagics(Group):
    @verb(
        option("site", help="one feature of an added SAE or transcoder, such as sae.4[17]"),
        option("--over", metavar="FOLDER|NAME", help="take examples from this collection: its folder, or a variable"),
        option("--layer", type=int, metavar="N", help="a layer that a cross-layer transcoder writes; default its own"),
        option("--examples", type=int, metavar="N", help="show so many of the largest values; default 10"),
        option("--top", type=int, metavar="N", help="show so many promoted tokens, and features like it; default 10"),
        HOVER,
        SAVE,
        KEEP,
    )
    def djinn_feature(self, args: Namespace) -> None:
        """Show a feature's page: what it writes to the vocabulary, features like it, and its examples.
        A collection (%djinn_collect) shows how often it is active, with a histogram and examples."""
        asked = given(layer=args.layer, examples=args.examples, top=args.top)
        found = page.feature(self.state.engine, args.site, self._collection(args.over), **asked)
        self.keep_and_draw(args, found, page_view(found))

    def _collection(self, name: str | None) -> Activations | str | None:
        """Return the collection in a variable of this notebook, else the name of its folder."""
        there = self.state.shell.user_ns.get(name)
        return there if isinstance(there, Activations) else name
