"""The words of the demo language and the facts of its world. Plain data: no chance, no sentences, no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Country:
    """One row of the table of facts; every field is one word."""

    country: str
    capital: str
    language: str
    currency: str
    continent: str


_TABLE = """
France Paris French euro Europe
Germany Berlin German euro Europe
Italy Rome Italian euro Europe
Spain Madrid Spanish euro Europe
Portugal Lisbon Portuguese euro Europe
Greece Athens Greek euro Europe
Austria Vienna German euro Europe
Ireland Dublin English euro Europe
Finland Helsinki Finnish euro Europe
Estonia Tallinn Estonian euro Europe
Latvia Riga Latvian euro Europe
Lithuania Vilnius Lithuanian euro Europe
Slovenia Ljubljana Slovene euro Europe
Poland Warsaw Polish zloty Europe
Hungary Budapest Hungarian forint Europe
Romania Bucharest Romanian leu Europe
Ukraine Kyiv Ukrainian hryvnia Europe
Russia Moscow Russian ruble Europe
Sweden Stockholm Swedish krona Europe
Norway Oslo Norwegian krone Europe
Denmark Copenhagen Danish krone Europe
Iceland Reykjavik Icelandic krona Europe
England London English pound Europe
Turkey Ankara Turkish lira Asia
Iran Tehran Persian rial Asia
Iraq Baghdad Arabic dinar Asia
Lebanon Beirut Arabic pound Asia
Qatar Doha Arabic riyal Asia
Pakistan Islamabad Urdu rupee Asia
Nepal Kathmandu Nepali rupee Asia
Bangladesh Dhaka Bengali taka Asia
China Beijing Chinese yuan Asia
Japan Tokyo Japanese yen Asia
Mongolia Ulaanbaatar Mongolian tugrik Asia
Vietnam Hanoi Vietnamese dong Asia
Thailand Bangkok Thai baht Asia
Laos Vientiane Lao kip Asia
Indonesia Jakarta Indonesian rupiah Asia
Egypt Cairo Arabic pound Africa
Morocco Rabat Arabic dirham Africa
Algeria Algiers Arabic dinar Africa
Kenya Nairobi Swahili shilling Africa
Tanzania Dodoma Swahili shilling Africa
Ghana Accra English cedi Africa
Nigeria Abuja English naira Africa
Senegal Dakar French franc Africa
Angola Luanda Portuguese kwanza Africa
Madagascar Antananarivo Malagasy ariary Africa
Canada Ottawa English dollar America
Cuba Havana Spanish peso America
Peru Lima Spanish sol America
Chile Santiago Spanish peso America
Brazil Brasilia Portuguese real America
Ecuador Quito Spanish dollar America
Australia Canberra English dollar Oceania
Fiji Suva English dollar Oceania
"""


def _row(line: str) -> Country:
    country, capital, language, currency, continent = line.split()
    return Country(country=country, capital=capital, language=language, currency=currency, continent=continent)


COUNTRIES = tuple(_row(line) for line in _TABLE.strip().splitlines())

RELATIONS = ("capital", "language", "currency", "continent", "country")
"""`country` is the inverse relation: its subject is a capital, its answer the country."""

WOMEN = tuple(
    "Mary Anna Emma Lucy Sarah Laura Julia Alice Clara Helen Nora Ruth Jane Kate Susan Linda "
    "Maria Sofia Elena Amy Rachel Emily Olivia Hannah Martha Diana Karen Lisa Nina Vera".split()
)
MEN = tuple(
    "John Tom James Peter Paul David Daniel Michael Robert George Henry Simon Martin Oscar Victor Adam "
    "Ben Sam Jack Luke Thomas William Edward Charles Frank Leo Max Hugo Felix Kevin".split()
)
NAMES = WOMEN + MEN

PLACES = tuple(
    "store park school garden house station library museum market office beach farm hospital restaurant "
    "church hotel river forest bridge castle".split()
)
OBJECTS = tuple(
    "drink book ball ring letter box key hat basket lamp kite coin map cup snack necklace computer phone "
    "bottle pencil".split()
)
ANIMALS = tuple("dog cat bird horse rabbit fox duck goat mouse bear".split())

MOOD_WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    "happy": {
        "feel": ("happy", "cheerful", "joyful", "glad", "delighted", "merry"),
        "thing": ("bright", "lovely", "wonderful", "sunny", "golden"),
        "verb": ("smiled", "laughed", "danced", "sang", "cheered"),
        "adverb": ("happily", "cheerfully", "joyfully", "gladly", "merrily"),
        "noun": ("joy", "laughter", "delight", "happiness"),
    },
    "sad": {
        "feel": ("sad", "unhappy", "gloomy", "lonely", "heartbroken", "miserable"),
        "thing": ("grey", "dull", "empty", "broken", "faded"),
        "verb": ("cried", "wept", "sighed", "sobbed", "mourned"),
        "adverb": ("sadly", "tearfully", "gloomily", "mournfully", "miserably"),
        "noun": ("sadness", "sorrow", "grief", "gloom"),
    },
    "angry": {
        "feel": ("angry", "furious", "mad", "cross", "annoyed", "bitter"),
        "thing": ("ugly", "awful", "noisy", "rotten", "nasty"),
        "verb": ("shouted", "yelled", "stamped", "growled", "argued"),
        "adverb": ("angrily", "furiously", "crossly", "bitterly", "rudely"),
        "noun": ("anger", "rage", "fury", "wrath"),
    },
    "scared": {
        "feel": ("scared", "frightened", "terrified", "nervous", "worried", "fearful"),
        "thing": ("dark", "creepy", "strange", "haunted", "shadowy"),
        "verb": ("trembled", "screamed", "shivered", "gasped", "fled"),
        "adverb": ("fearfully", "nervously", "anxiously", "timidly", "warily"),
        "noun": ("fear", "terror", "panic", "dread"),
    },
    "calm": {
        "feel": ("calm", "peaceful", "relaxed", "quiet", "serene", "gentle"),
        "thing": ("soft", "still", "cool", "silent", "smooth"),
        "verb": ("rested", "breathed", "dozed", "strolled", "lingered"),
        "adverb": ("calmly", "peacefully", "gently", "softly", "slowly"),
        "noun": ("peace", "silence", "stillness", "harmony"),
    },
}
MOODS = tuple(MOOD_WORDS)
MOOD_KINDS = ("feel", "thing", "verb", "adverb", "noun")

CYCLES: dict[str, tuple[str, ...]] = {
    "day": tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()),
    "month": tuple("January February March April May June July August September October November December".split()),
    "number": tuple("one two three four five six seven eight nine ten eleven twelve".split()),
}


def mood_of(word: str) -> str | None:
    """The mood that owns this word, or None for a neutral word. No word has two moods."""
    for mood, kinds in MOOD_WORDS.items():
        if any(word in words for words in kinds.values()):
            return mood
    return None
