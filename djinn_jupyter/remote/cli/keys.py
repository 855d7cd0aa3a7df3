"""`djinn key`: draw an own key, admit persons to own engines, and trust the engines of another machine."""

from __future__ import annotations

import argparse

from djinn_jupyter.cli.commands import Commands, duration, moment
from djinn_jupyter.errors import UsageError
from djinn_jupyter.remote.addresses import draw_own, key_folder, of_engines_here
from djinn_jupyter.units import spell_moment
from djinn_jupyter.wire.keys import Permit, PublicKey, read_public, spell_public
from djinn_jupyter.wire.own import host_name


def add_to(commands: Commands) -> None:
    key = commands.add_parser("key", help="keys by which engines of other machines know you, and yours know others")
    verbs = key.add_subparsers(required=True, metavar="VERB")
    new = verbs.add_parser("new", help="draw a key of your own")
    new.add_argument("name", nargs="?", help="by default your user name")
    new.set_defaults(command=_new)
    allow = verbs.add_parser("allow", help="admit a person to your engines on this machine")
    allow.add_argument("public", help="the key that `djinn key new` printed there")
    allow.add_argument("--as", dest="person", required=True, metavar="NAME", help="the name of that person here")
    end = allow.add_mutually_exclusive_group()
    end.add_argument("--until", type=moment, metavar="TIME", help="until then alone, such as 2026-12-01T12:00Z")
    end.add_argument("--for", type=duration, dest="seconds", metavar="TIME", help="for so long alone, such as 8h")
    allow.set_defaults(command=_allow)
    revoke = verbs.add_parser("revoke", help="admit a person no more, from now on")
    revoke.add_argument("person", metavar="NAME")
    revoke.set_defaults(command=_revoke)
    trust = verbs.add_parser("trust", help="note the key of another machine's engines")
    trust.add_argument("place", metavar="HOST", help="or HOST:PORT, where several users have engines")
    trust.add_argument("public", help="the key that `djinn key allow` printed there")
    trust.set_defaults(command=_trust)
    verbs.add_parser("list", help="your keys, who is admitted, and what is trusted").set_defaults(command=_list)


def _new(options: argparse.Namespace) -> int:
    name, drawn = draw_own(options.name)
    allow = f"djinn key allow {spell_public(drawn.public)} --as {name}"
    print(f"Your key {name} is drawn. On the engine's machine:\n  {allow}")
    return 0


def _allow(options: argparse.Namespace) -> int:
    keys = key_folder()
    until = options.until if options.seconds is None else keys.now() + options.seconds
    if until is not None and until <= keys.now():
        raise UsageError(f"{spell_moment(until)} has passed: give a moment that is to come, or --for 8h.")
    keys.allow(read_public(options.public), options.person, until)
    here = spell_public(of_engines_here().public)
    trust = f"djinn key trust {host_name()} {here}"
    print(f"{options.person} is admitted{_until(until)}. On the machine of {options.person}:\n  {trust}")
    return 0


def _revoke(options: argparse.Namespace) -> int:
    key_folder().revoke(options.person)
    print(f"{options.person} is not admitted any more, by no engine of yours on this machine.")
    return 0


def _trust(options: argparse.Namespace) -> int:
    key_folder().trust(options.place, read_public(options.public))
    print(f"The engines at {options.place} are trusted. Try:\n  %djinn_load demo --at {options.place}")
    return 0


def _list(options: argparse.Namespace) -> int:
    keys = key_folder()
    own = [f"{name}  {spell_public(keys.own(name).public)}" for name in keys.names("own")]
    admitted = [_admitted(public, permit, keys.now()) for public, permit in keys.permits().items()]
    trusted = [f"{place}  {_trusted(place)}" for place in keys.names("trusted")]
    for title, lines in (("Your keys", own), ("Admitted here", admitted), ("Trusted engines", trusted)):
        print(f"{title}:", *(lines or ["none"]), sep="\n  ")
    return 0


def _admitted(public: PublicKey, permit: Permit, now: float) -> str:
    ended = ", which has passed" if permit.ended(now) else ""
    by_hub = ", by the hub" if permit.lent else ""
    return f"{permit.person}  {spell_public(public)}{_until(permit.until)}{ended}{by_hub}"


def _until(end: float | None) -> str:
    return "" if end is None else f" until {spell_moment(end)}"


def _trusted(place: str) -> str:
    public, service = key_folder().trusted(place), key_folder().found_by(place)
    return f"{spell_public(public)}{f', found by {service}' if service else ''}" if public else "withdrawn"
