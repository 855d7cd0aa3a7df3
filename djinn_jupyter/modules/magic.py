"""Adapters: fine-tuned models as sessions on one copy of the weights."""

from __future__ import annotations

import re
from argparse import Namespace

from IPython.core.magic import magics_class

from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.parsing import KEEP, Group, option, unquoted, verb
from djinn_jupyter.modules import api
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
        """Add a LoRA adapter to the model; sessions use it after %djinn_adapter."""
        adapter = self.state.engine.add_adapter(args.name, args.folder)
        self.keep_and_show(args, adapter, views.adapter_line(adapter))

    @verb(option("name", nargs="?", help="an adapter that was added, or off; without one, all are listed"), KEEP)
    def djinn_adapter(self, args: Namespace) -> None:
        """Set the present session's adapter, before its first prompt; or list the adapters."""
        if args.name is None:
            adapters = self.state.engine.adapters()
            self.keep_and_show(args, adapters, "\n".join(map(views.adapter_line, adapters)) or "no adapter was added")
            return
        session = self.state.session()
        session.adapter = None if args.name in OFF else args.name
        how = "the model alone" if session.adapter is None else f"the adapter {session.adapter}"
        self.keep_and_show(args, session.adapter, f"{session.label} computes with {how}")

    @verb(option("name", help="such as sql"))
    def djinn_remove_adapter(self, args: Namespace) -> None:
        """Remove an adapter that no session uses."""
        self.state.engine.remove_adapter(args.name)
        self.state.screen.say(f"the adapter {args.name} was removed")


# Modules added to the model: SAEs, transcoders, probes and tuned lenses as sites.


@magics_class
class AddingMagics(Group):
    @verb(
        option("name", help="such as sae; its site is then sae.LAYER"),
        option("folder", help="of SAELens (cfg.json, sae_weights.safetensors), or with module.json"),
        option("--at", metavar="POINT", help="the point that it reads, as resid_post.8; default as its files say"),
        option(
            "--no-error-term",
            action="store_true",
            help="an edit of features leaves out what the SAE does not reconstruct of the point",
        ),
        KEEP,
    )
    def djinn_add_module(self, args: Namespace) -> None:
        """Add an SAE, a transcoder, a probe or a tuned lens; its features are then sites, such as sae.8[1234]."""
        module = self.state.engine.add_module(args.name, args.folder, args.at, error_term=not args.no_error_term)
        self.keep_and_show(args, module, views.added_line(module))

    @verb(
        option("name", help="such as tc; their sites are then tc.LAYER"),
        option("folder", help="of circuit-tracer: layer_0.safetensors, or W_enc_0.safetensors and W_dec_0"),
        option("--point", help="the point that they read, as mlp_in; default as config.yaml says"),
        option("--no-error-term", action="store_true", help="edits of features leave out the error term"),
        KEEP,
    )
    def djinn_add_transcoders(self, args: Namespace) -> None:
        """Add the transcoders of all layers in a folder of circuit-tracer, or a cross-layer transcoder."""
        found = self.state.engine.add_transcoders(args.name, args.folder, args.point, error_term=not args.no_error_term)
        self.keep_and_show(args, found, "\n".join(map(views.added_line, found)))

    @verb(
        option("site", help="a feature such as sae.8[1234]; for --from, or to list its names, a module such as sae.8"),
        option("name", nargs="*", metavar="NAME", help='give it this name; "" removes its name'),
        option(
            "--from",
            dest="file",
            metavar="FILE",
            help="read names from Neuronpedia's export of explanations (.jsonl.gz), JSON, or .csv",
        ),
        KEEP,
    )
    def djinn_name(self, args: Namespace) -> None:
        """Name a feature of an added module, or many from a file: stops, lists, tables and graphs show the names."""
        feature = re.fullmatch(r"(.+)\[(\d{1,18})\]", args.site)
        site, channel, note = feature[1] if feature else args.site, self.state.engine.channel, None
        match feature, args.name, args.file:
            case _, [], None:
                named = api.feature_names(channel, args.site)
            case re.Match(), [*words], None:
                named, note = api.name_features(channel, site, {int(feature[2]): unquoted(" ".join(words))})
            case None, [], str(file):
                named, note = api.name_features(channel, site, file)
            case _:
                raise UsageError(
                    "Write a feature and its name, such as sae.8[1234] capitals, or a module and a file, such as sae.8 "
                    "--from FILE."
                )
        self.keep_and_show(args, named, views.names_line(site, named))
        if note is not None:
            self.state.screen.say(note)

    @verb(option("name", help="such as sae, for every layer, or sae.8"))
    def djinn_remove_module(self, args: Namespace) -> None:
        """Remove added modules: all of a name, or one."""
        count = self.state.engine.remove_module(args.name)
        self.state.screen.say(f"{count} module{'' if count == 1 else 's'} removed")
