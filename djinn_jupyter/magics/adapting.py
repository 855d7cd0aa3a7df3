"""Adapters: fine-tuned models as sessions on one copy of the weights."""

from __future__ import annotations

from argparse import Namespace

from IPython.core.magic import magics_class

from djinn_jupyter.magics.parsing import KEEP, Group, option, verb
from djinn_jupyter.widgets import views

OFF = ("off", "none")


@magics_class
class AdaptingMagics(Group):
    @verb(
        option("name", help="such as sql; sessions compute with it by this name"),
        option("folder", help="of PEFT: adapter_config.json, adapter_model.safetensors"),
        KEEP,
    )
    def djinn_add_adapter(self, args: Namespace) -> None:
        """Add a LoRA adapter to the model; sessions compute with it where %djinn_adapter says so."""
        adapter = self.state.engine.add_adapter(args.name, args.folder)
        self.state.keep(args.keep, adapter)
        self.state.screen.say(views.adapter_line(adapter))

    @verb(
        option("name", nargs="?", help="an adapter that was added, or off; without one, all are listed"),
        KEEP,
    )
    def djinn_adapter(self, args: Namespace) -> None:
        """Have the present session compute with an adapter, before its first prompt; or list the adapters."""
        if args.name is None:
            adapters = self.state.engine.adapters()
            self.state.keep(args.keep, adapters)
            self.state.screen.say("\n".join(map(views.adapter_line, adapters)) or "no adapter was added")
            return
        session = self.state.session()
        session.adapter = None if args.name in OFF else args.name
        how = "the model alone" if session.adapter is None else f"the adapter {session.adapter}"
        self.state.keep(args.keep, session.adapter)
        self.state.screen.say(f"{session.label} computes with {how}")

    @verb(option("name", help="such as sql"))
    def djinn_remove_adapter(self, args: Namespace) -> None:
        """Remove an adapter that no session computes with."""
        self.state.engine.remove_adapter(args.name)
        self.state.screen.say(f"the adapter {args.name} was removed")
