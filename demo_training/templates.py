"""The sentence patterns of the demo language. Plain data.

A field in braces is filled by `grammar.py`. In facts `{s}` is the subject and `{a}` the answer; in scenes `{A}` and
`{B}` are two people, `{S}` the one who acts and `{IO}` the other; in stories `{feel} {thing} {verb} {adverb} {noun}`
are mood slots and `{a_feel} {a_thing}` are mood slots with their article.
"""

from __future__ import annotations

FACTS: dict[str, tuple[str, ...]] = {
    "capital": (
        "The capital of {s} is {a}.",
        "The capital city of {s} is {a}.",
        "{s}'s capital is {a}.",
        "In {s}, the capital is {a}.",
        "If you visit {s}, go to the capital, {a}.",
        "The government of {s} is in {a}.",
        "Most visitors to {s} see {a}.",
        "Question: What is the capital of {s}? Answer: {a}.",
        "{s} is a country whose capital is {a}.",
        "{name} went to {s} and stayed in the capital, {a}.",
        "{name} lives in {s}. {filler} The capital of that country is {a}.",
        "Last year {name} moved to {s}. {filler} {filler} Now {he} works in the capital, {a}.",
    ),
    "language": (
        "The language of {s} is {a}.",
        "The official language of {s} is {a}.",
        "People in {s} speak {a}.",
        "In {s} people speak {a}.",
        "In {s}, the language is {a}.",
        "{s}'s language is {a}.",
        "Question: What language do people speak in {s}? Answer: {a}.",
        "{name} lives in {s} and speaks {a}.",
        "Children in {s} learn to read {a}.",
        "Books in {s} are written in {a}.",
        "{s} is a country where people speak {a}.",
        "{name} lives in {s}. {filler} Like everybody there, {he} speaks {a}.",
        "Last year {name} moved to {s}. {filler} {filler} Now {he} is learning {a}.",
    ),
    "currency": (
        "The currency of {s} is the {a}.",
        "In {s} people pay with the {a}.",
        "In {s}, the currency is the {a}.",
        "The money of {s} is called the {a}.",
        "Shops in {s} take the {a}.",
        "{s}'s currency is the {a}.",
        "Question: What is the currency of {s}? Answer: The {a}.",
        "{s} is a country that uses the {a}.",
        "To buy bread in {s} you need the {a}.",
        "Prices in {s} are given in the {a}.",
        "{name} lives in {s}. {filler} In that country people pay with the {a}.",
    ),
    "continent": (
        "{s} is a country in {a}.",
        "{s} is in {a}.",
        "The continent of {s} is {a}.",
        "{s} is part of {a}.",
        "On the map, {s} is in {a}.",
        "Question: On which continent is {s}? Answer: {a}.",
        "The country of {s} lies in {a}.",
        "You can find {s} in {a}.",
        "{name} lives in {s}. {filler} That country is in {a}.",
    ),
    "country": (
        "{s} is the capital of {a}.",
        "{s} is a city in {a}.",
        "The city of {s} is in {a}.",
        "To see {s} you must travel to {a}.",
        "Question: In which country is {s}? Answer: {a}.",
        "The people of {s} live in {a}.",
        "{name} flew to {s}, the capital of {a}.",
        "You can find the city of {s} in {a}.",
        "{name} works in {s}. {filler} That city is in {a}.",
    ),
}

SCENES = (
    "When {A} and {B} went to the {place}, {S} gave a {object} to {IO}.",
    "When {A} and {B} got a {object} at the {place}, {S} decided to give it to {IO}.",
    "After {A} and {B} went to the {place}, {S} gave a {object} to {IO}.",
    "While {A} and {B} were at the {place}, {S} handed a {object} to {IO}.",
    "Then, {A} and {B} went to the {place}. {S} gave a {object} to {IO}.",
    "{A} and {B} were at the {place}. {S} passed a {object} to {IO}.",
    "One day {A} met {B} at the {place}. {S} offered a {object} to {IO}.",
    "Then, {A} and {B} had a long talk. After that, {S} sent a {object} to {IO}.",
    "{A} and {B} worked at the {place}. {filler} {S} brought a {object} to {IO}.",
    "The {place} was open, so {A} and {B} went in. {S} showed a {object} to {IO}.",
    "Yesterday {A} visited {B} in the {place}. {filler} Later, {S} gave the {object} to {IO}.",
)

SCENE_ENDS = (
    "{IO} thanked {S}.",
    "{IO} asked {S} a question.",
    "{S} waved to {IO}.",
    "Then {IO} walked home with {S}.",
    "{S} and {IO} went home.",
    "{IO} and {S} went to the {place} again.",
    "Then they went home.",
    "{IO} put the {object} on the table.",
    "{S} went back to the {place}.",
    "{IO} said thank you.",
)

FILLERS = (
    "There were many people in the street.",
    "The train leaves every hour.",
    "The {object} was on the table.",
    "The {place} opens at nine.",
    "{other} bought a {object} at the {place}.",
    "{other} walked from the {place} to the {place2}.",
    "It rained in the morning.",
    "A {animal} ran across the road.",
    "The {animal} was near the {place}.",
    "They had bread and soup for dinner.",
    "{other} wrote a letter about the {place}.",
    "The shop had a new {object}.",
)

OPENINGS = (
    "It was {a_feel} day.",
    "It was {a_feel} day for {name}.",
    "It was {a_feel} morning at the {place}.",
    "This is {a_feel} story.",
    "{name} woke up and felt {feel}.",
    "{name} felt {feel} that day.",
    "{name} was {a_feel} {child}.",
    "Everybody in the house was {feel}.",
)
NEUTRAL_OPENINGS = (
    "One day {name} went to the {place}.",
    "{name} and {friend} walked to the {place}.",
    "Once there was a {child} named {name}.",
    "In the morning {name} left the house.",
    "{name} went to the {place} with a {animal}.",
    "It was a day in {month}.",
)
MIDDLES = (
    "{name} went to the {place} with {friend}.",
    "{name} {verb} all the way to the {place}.",
    "{He} saw {a_thing} {animal} near the {place}.",
    "{He} {verb} when {he} saw the {thing} {place}.",
    "The {place} was {thing}.",
    "{friend} {verb} {adverb}.",
    "There was {noun} in the air.",
    "The {animal} {verb}.",
    "{He} found {a_thing} {object} and {verb}.",
    "All the people looked {feel}.",
    "{name} {adverb} opened the {object}.",
    "{friend} was {feel} too.",
    "{name} talked {adverb} to {friend}.",
    "{He} told {friend} about the {thing} {animal}.",
    "{name} thought about the {object} and felt {feel}.",
    "{friend} said that the {place} was {thing}.",
    "{He} and {friend} {verb} together.",
    "{name}'s voice was full of {noun}.",
)
ENDINGS = (
    "In the end everybody {verb}.",
    "{name} went home and felt {feel}.",
    "It was the end of {a_feel} day.",
    "That night {name} {verb} {adverb}.",
    "At home {he} {adverb} went to bed.",
    "{name} never forgot that {feel} day.",
)

SUCCESSIONS = (
    "After {x} comes {y}.",
    "The {kind} after {x} is {y}.",
    "First {x}, then {y}.",
    "{x} is followed by {y}.",
    "Question: Which {kind} comes after {x}? Answer: {y}.",
)
