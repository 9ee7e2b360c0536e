"""Everyday sentences from templates: names, dates, times, prices and other numbers."""

import random
import re

FIELD = re.compile(r"\{(\w+)\}")


class Filler:
    """Fills the fields of a template; the same generator gives the same sentences."""

    def __init__(self, choices: dict[str, str], nouns: list[str], rng: random.Random) -> None:
        """`choices`: values by field, separated by bars or spaces; `nouns`: frequent words, most frequent first."""
        self._choices = {field: _split(values) for field, values in choices.items()} | {"noun": nouns[:3000]}
        self._rng = rng

    def fill(self, template: str) -> str:
        text = FIELD.sub(lambda match: self._value(match.group(1)), template)
        return text[0].upper() + text[1:]

    def _value(self, field: str) -> str:
        rng = self._rng
        if field in self._choices:
            return rng.choice(self._choices[field])
        if field == "time":
            return self._time()
        numbers = {
            "digit": rng.randint(0, 9),
            "number": rng.randint(1, rng.choice((12, 30, 100, 999))),
            "large": rng.randint(1, 999) * rng.choice((10, 100)),
            "year": rng.randint(1700, 2039),
        }
        if field == "digits":
            return " ".join(str(rng.randint(0, 9)) for _ in range(rng.randint(3, 7)))
        return str(numbers[field])

    def _time(self) -> str:
        rng = self._rng
        hour = rng.choice(self._choices["hour"])
        clock = f"{rng.randint(1, 12)}:{rng.choice(('00', '15', '30', '45', str(rng.randint(10, 59))))}"
        return rng.choice((hour, f"half past {hour}", clock, f"{hour} in the morning", f"{hour} in the evening"))


def _split(values: str) -> list[str]:
    return values.split("|") if "|" in values else values.split()
