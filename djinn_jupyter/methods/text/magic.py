"""The magic of a text as a whole."""

from __future__ import annotations

from argparse import Namespace

from IPython.core.magic import magics_class

from djinn_jupyter.magics.parsing import HOVER, KEEP, SAVE, SESSION, Group, given, option, unquoted, verb
from djinn_jupyter.methods.text import api, card


@magics_class
class TextMagics(Group):
    @verb(
        option("--by", type=unquoted, metavar="MEASURE", help="colour by probability (default) or entropy"),
        option("--metric", type=unquoted, metavar="EXPR", help="such as \"logit(' Mary') - logit(' John')\""),
        option("--site", help="a value at each token: a feature such as sae.4[17], a probe, or the norm of a point"),
        option("--along", metavar="VECTOR", help="measure the component of --site along this vector"),
        option("--top", type=int, help="show so many predictions for each token; default 5"),
        option("--text-from", metavar="NAME", help="read the text or token ids in this variable instead"),
        HOVER,
        SAVE,
        KEEP,
        SESSION,
    )
    def djinn_text(self, args: Namespace) -> None:
        """Show the session's text, prompt and generated, its tokens coloured by a measure.
        They are read in one pass under its steering rules; the top predictions in their places show on hover."""
        session = self.state.session(args.session)
        prompt, along = (None if name is None else self.state.value(name) for name in (args.text_from, args.along))
        asked = given(by=args.by, metric=args.metric, site=args.site, along=along, top=args.top)
        read = api.text(session, prompt, **asked)
        self.keep_and_draw(args, read, card.text_view(read, session.name))
