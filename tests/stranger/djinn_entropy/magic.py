"""%djinn_entropy"""

from argparse import Namespace

from IPython.core.magic import magics_class

from djinn_entropy import api, card
from djinn_jupyter.magics.parsing import KEEP, SESSION, Group, verb


@magics_class
class EntropyMagics(Group):
    @verb(KEEP, SESSION)
    def djinn_entropy(self, args: Namespace) -> None:
        """Read the entropy of every head's attention at the stop."""
        found = api.entropy(self.state.session(args.session))
        self.state.keep(args.keep, found)
        self.state.screen.show(card.entropy_view(found))
