"""The parts of one attention score, as a table."""

from __future__ import annotations

from argparse import Namespace

from IPython.core.magic import magics_class

from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.parsing import HOVER, KEEP, SAVE, SESSION, Group, given, option, verb
from djinn_jupyter.methods.why import api, card


@magics_class
class WhyMagics(Group):
    @verb(
        option("head", metavar="L.H", help="layer and head, such as 5.1"),
        option("--query", type=int, metavar="P", help="the position that attends, negative from the end; default -1"),
        option("--key", type=int, metavar="P", help="the position that it attends to"),
        option("--features", metavar="SAE", help="show the features of this added SAE, such as sae.4, as parts"),
        HOVER,
        SAVE,
        KEEP,
        SESSION,
    )
    def djinn_why(self, args: Namespace) -> None:
        """Show why a head attends from one position to another: what each earlier head and MLP adds to the score."""
        if args.key is None:
            raise UsageError("A score is of two positions: name the one that is attended to, as --key 3.")
        session = self.state.session(args.session)
        read = api.why(session, args.head, key=args.key, **given(query=args.query, features=args.features))
        self.keep_and_draw(args, read, card.score_view(read, session.name))
