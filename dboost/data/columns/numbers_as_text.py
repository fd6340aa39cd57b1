"""Text that was numbers or dates before it was written: amounts with a currency, a unit or separators, percentages, dates.

A column of text is categorical, whatever it holds, because a table states by its types what it means. Text that was a number is
usually a mistake, and it makes a useless feature of many categories. So the categories of text features are inspected when a
table has been read, whatever its source, and a warning quotes a value and the code that converts the column. The errors for
text where numbers are needed quote it as well.

`find` inspects different values, never rows: a sample decides, and only values that look like numbers are counted. Text is
converted by replacements of regular expressions, so the code in a message is what `find` has tried on the values itself. The
expressions use what Python's `re` and RE2, which Arrow's strings use, have in common.

Some text of digits is no number, and there is no warning of it: text of digits only, such as postal codes; digits with leading
zeros, or of equal width, in groups; numbers that differ as text only ("3.1", "3.10"); numbers with several units, unless these
are powers of 1,000 ("2K", "1.5M").
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import filterfalse, islice, product
from typing import Any

from dboost.errors import warn
from dboost.schema import TEXT, Feature, Level, kinds_of

#: Values that decide, least number of values, and share of numbers or dates among them from which they are described.
_MOST, _LEAST, _SHARE = 1000, 10, 0.8
#: Digits from which numbers of equal width are codes.
_CODE_WIDTH = 5
#: Characters of the longest number; patterns take long for long text of spaces.
_LONGEST = 40

_SPACE, _MINUS = "[ \t\u00a0\u2009\u202f]", "[-−–]"
_CURRENCY = r"(?:[A-Z]{0,2}[$€£¥₹₩₽₺฿]|(?:USD|EUR|GBP|JPY|CHF|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN|CZK|BRL|Rs\.?|kr\.?|zł))"
_UNIT = rf"(?:{_CURRENCY}|[%‰]|°[CFK]?|[^\W\d_]{{1,10}}(?:[ /.][^\W\d_]{{1,10}})?[²³23]?)"
_PLAIN = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_DIGIT = re.compile("[0-9]")


def _amount(point: str, comma: str) -> re.Pattern[str]:
    """Return the pattern of a number. point, comma : between whole and decimals, and between thousands."""
    groups = "|".join(rf"[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+" for mark in (comma, _SPACE, "['’]"))
    digits = rf"(?:(?:{groups}|[1-9][0-9]?(?:{comma}[0-9]{{2}})+{comma}[0-9]{{3}}|[0-9]+)(?:{point}[0-9]*)?|{point}[0-9]+)"
    gap = f"{_SPACE}*"  # only before or after something else, since spaces that several gaps may take are tried in all ways
    return re.compile(
        rf"{gap}(?:(?P<sign>{_MINUS}|\+){gap})?(?:(?P<currency>{_CURRENCY}){gap})?(?:(?P<open>\(){gap})?"
        rf"(?:(?P<later>{_CURRENCY}|{_MINUS}|\+){gap})?(?P<digits>{digits})(?P<power>[eE][-+]?[0-9]+)?"
        rf"(?:{gap}(?P<unit>{_UNIT}))?(?:{gap}(?P<close>\)))?(?:{gap}(?P<unit_after>{_UNIT}))?(?:{gap}(?P<minus>{_MINUS}))?{gap}"
    )


_AMOUNTS = {".": _amount(r"\.", ","), ",": _amount(",", r"\.")}
#: Units that are powers of ten.
_POWERS = {"k": 3, "m": 6, "mn": 6, "b": 9, "bn": 9}

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_CLOCK = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?(?: ?[ap]m)?"
_LIKE_DATE = re.compile(
    r"(?:[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}|[0-9]{1,2}[-/.][0-9]{1,2}[-/.][0-9]{4}|[0-9]{1,2}[-/][0-9]{1,2}[-/][0-9]{2}"
    rf"|(?:19|20)[0-9]{{2}}[-/][0-9]{{2}}|[0-9]{{2}}/(?:19|20)[0-9]{{2}}|[0-9]{{2}}\.[0-9]{{2}}\.[0-9]{{2}}"
    rf"|[0-9]{{1,2}}[- ]{_MONTH}[- ][0-9]{{2,4}}|{_MONTH} [0-9]{{1,2}},? [0-9]{{4}}|{_MONTH}[- ][0-9]{{2,4}}|{_CLOCK})"
    rf"(?:[T ]{_CLOCK}(?:Z|[-+][0-9]{{2}}:?[0-9]{{2}})?)?",
    re.IGNORECASE,
)
_ISO = "ISO8601"
_DAYS = (
    *(f"{a}{mark}{b}{mark}%{year}" for mark in "/-." for year in "Yy" for a, b in (("%d", "%m"), ("%m", "%d"))),
    *("%Y/%m/%d", "%Y.%m.%d", "%Y-%m", "%Y/%m", "%m/%Y"),
    *(f"%d{mark}{month}{mark}%{year}" for mark in "- " for month in ("%b", "%B") for year in "Yy"),
    *("%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y"),
    *(f"{month}{mark}%{year}" for month in ("%b", "%B") for mark in "- " for year in "Yy"),
)
_TIMES = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p")
_FORMATS = (_ISO, *_DAYS, *(f"{day} {time}" for day, time in product(_DAYS, _TIMES)), *_TIMES)


@dataclass(frozen=True)
class Resemblance:
    """What most of the different values of a column look like."""

    #: How a sentence continues after "… categories": what they look like, an example, and the first values that do not.
    description: str
    #: Number of values of which that is true, and of all.
    n_alike: int
    n_levels: int
    #: Code that converts the column, as a format string of the column.
    remedy: str

    def convert(self, column: str) -> str:
        """Return the code, in pandas, that converts a column. column : an expression."""
        return self.remedy.replace("{}", column)


def find(levels: Sequence[Level], least: int = _LEAST) -> Resemblance | None:
    """Return what at least 80 % of the different values of a column look like if they are numbers or dates, or None.

    least : number of values below which nothing is said.
    """
    if len(levels) < least:
        return None
    sampled = levels[:: -(-len(levels) // _MOST)]
    text = [level for level in sampled if isinstance(level, str)]
    if len(text) < len(sampled) or not _mostly(_DIGIT.search, text):
        return None
    find_form = _dates if _mostly(lambda level: _LIKE_DATE.fullmatch(level.strip()), text) else _amounts
    return find_form(text, list(map(str, levels)))


def _mostly(resembles: Callable[[str], Any], levels: Sequence[str]) -> bool:
    """Return whether at least 80 % of some values resemble something. Most columns do not: the first values decide then."""
    others = filterfalse(resembles, levels)
    return next(islice(others, len(levels) - math.ceil(_SHARE * len(levels)), None), None) is None


def hint(name: str, levels: Sequence[Level], *, is_column: bool = True) -> str:
    """Return a clause for an error about text where numbers are needed: how to convert it; empty if the text is no numbers.

    name : of a column of the table, or (not `is_column`) of the argument with the values; levels : different values, or some.
    """
    form = find(levels)
    if form is None:
        return ""
    column = f"frame[{name!r}]" if is_column else f"pandas.Series({name})"
    return f"; its values {form.description}: convert it, in pandas by {form.convert(column)}"


def _but_not(others: Sequence[str]) -> str:
    if not others:
        return ""
    return f", but not {', '.join(map(repr, others[:3]))}{' and others' if len(others) > 3 else ''}"


# Dates.


def _parses(level: str, form: str) -> bool:
    try:
        moment = datetime.fromisoformat(level.strip()) if form == _ISO else datetime.strptime(level, form)
    except ValueError:
        return False
    return 1677 < moment.year < 2262  # those of nanoseconds


def _dates(sample: list[str], every: list[str]) -> Resemblance | None:
    first = sample[:: -(-len(sample) // 20)]
    likely = [form for form in _FORMATS if sum(_parses(level, form) for level in first) >= len(first) // 2]
    counts = {form: sum(_parses(level, form) for level in sample) for form in likely}
    if not counts or max(counts.values()) < _SHARE * len(sample):
        return None
    form = max(counts, key=lambda candidate: counts[candidate])
    alike = [level for level in every if _parses(level, form)]
    others = [level for level in every if not _parses(level, form)]
    swapped = form.replace("%d", "%D").replace("%m", "%d").replace("%D", "%m")
    order = f" of the format {form!r}" if form != _ISO else ""
    if "%d" in form and "%m" in form and not form.startswith("%Y"):
        order = f" of the format {form!r}, {'day' if form.index('%d') < form.index('%m') else 'month'} first"
        if swapped in counts and counts[swapped] == counts[form]:
            order += f" (or {swapped!r}: no value decides)"
    elif form in _TIMES:
        order = f" of the format {form!r}"
    zone = form == _ISO and any(re.search(r"(?:Z|[-+][0-9]{2}:?[0-9]{2})$", level.strip()[10:]) for level in alike)
    start = "'1900-01-01'" if form in _TIMES else "0, tz='UTC'" if zone else "0"
    options = f"format={form!r}{', utc=True' if zone else ''}" + (", errors='coerce'" if others else "")
    noun = "times" if form in _TIMES else "dates"
    return Resemblance(
        f"look like {noun}{order}, such as {alike[-1]!r}{_but_not(others)}",
        len(alike),
        len(every),
        f"(pandas.to_datetime({{}}, {options}) - pandas.Timestamp({start})).dt.total_seconds()",
    )


# Numbers.


def _amounts(sample: list[str], every: list[str]) -> Resemblance | None:
    likely = [point for point in _AMOUNTS if _mostly(partial(_matched, point=point), sample)]
    if not likely:
        return None
    point = max(likely, key=lambda candidate: sum(_matched(level, candidate) is not None for level in sample))
    matches = [match for level in every if (match := _matched(level, point))]
    alike = [match.string for match in matches]
    is_alike = set(alike)
    others = [level for level in every if level not in is_alike]
    steps = _steps(matches, point)
    if steps is None or _are_codes(matches[:: -(-len(matches) // _MOST)], others, plain=not steps):
        return None

    def converted(level: str) -> str:
        for pattern, replacement in steps:
            level = re.sub(pattern, replacement, level)
        return level

    if not all(_PLAIN.fullmatch(converted(level)) for level in alike[:: -(-len(alike) // _MOST)]):
        return None
    if any(_PLAIN.fullmatch(converted(level)) for level in others):  # the code would make something else of it
        return None
    code = "{}" + "".join(f".str.replace({pattern!r}, {replacement!r}, regex=True)" for pattern, replacement in steps)
    code = f"pandas.to_numeric({code}, errors='coerce')" if others else f"{code}.astype(float)"
    if not steps:
        sentence = "are numbers" if others else f"are numbers, such as {max(alike, key=_length)!r}"
    else:
        decimal = " with a decimal comma" if (",", ".") in steps else ""
        sentence = f"look like numbers{decimal}, such as {max(alike, key=_length)!r}"
    return Resemblance(sentence + _but_not(others), len(alike), len(every), code)


def _length(level: str) -> tuple[int, str]:
    return len(level), level


def _matched(level: str, point: str) -> re.Match[str] | None:
    """Return the parts of a number, or None. point : between whole and decimals."""
    match = _AMOUNTS[point].fullmatch(level) if len(level) <= _LONGEST else None
    if match is None or (match["open"] is None) != (match["close"] is None):
        return None
    later = match["later"] or ""
    signs = sum(bool(part) for part in (match["sign"], match["open"], match["minus"], re.fullmatch(rf"{_MINUS}|\+", later)))
    names = sum(bool(part) for part in (match["unit"], match["unit_after"]))
    doubled = match["currency"] and re.fullmatch(_CURRENCY, later)
    return None if signs > 1 or names > 1 or doubled else match


def _are_codes(matches: Sequence[re.Match[str]], others: list[str], *, plain: bool) -> bool:
    """Return whether numbers are names: see the module. plain : whether they need no replacement."""
    digits = [re.sub("[^0-9]", "", match["digits"]) for match in matches]
    whole = [_INTEGER.fullmatch(match.string.strip()) is not None for match in matches]
    if any(re.match("0[0-9]", match["digits"]) for match in matches):
        return True
    one_width = len(set(map(len, digits))) == 1 and len(digits[0]) >= _CODE_WIDTH
    if plain and all(whole):
        return not others or one_width
    if plain and not others:
        return sum(whole) > len(whole) / 2 or len({float(match.string) for match in matches}) < len(matches)
    bare = all(match.string == match["digits"] for match in matches)
    return bare and one_width and all(re.search("[0-9][^0-9,][0-9]{3}", match.string) for match in matches)


def _steps(matches: Sequence[re.Match[str]], point: str) -> list[tuple[str, str]] | None:
    """Return replacements of regular expressions after which numbers are plain, or None if their units differ."""
    names = {name for match in matches for name in (match["unit"], match["unit_after"]) if name}
    currencies = {name for match in matches for name in (match["currency"], match["later"]) if name} - set("+-−–")
    stems = {_stem(name) for name in names if not re.fullmatch(_CURRENCY, name)}
    money = currencies | {name for name in names if re.fullmatch(_CURRENCY, name)}
    if len({name.rstrip(".") for name in money}) > 1 or "e" in {name.casefold() for name in names}:
        return None
    powers: list[tuple[str, str]] = []
    if stems and stems <= set(_POWERS):
        bare = any(not (match["unit"] or match["unit_after"]) for match in matches)
        if len(stems) > 1 or (bare and names != {"m"}):
            scaled = sorted(name for name in names if _stem(name) in _POWERS)
            powers = [(f"{re.escape(name)}$", f"e{_POWERS[_stem(name)]}") for name in scaled]
            names -= set(scaled)
    if not powers and len(stems) > 1:
        return None
    removed = sorted({name for name in names | currencies if len(name) > 1}, key=lambda name: (-len(name), name))
    characters = set().union(*(match["digits"] for match in matches)) - set("0123456789" + point)
    characters |= set(re.findall(_SPACE, "".join(set().union(*(match.string for match in matches)))))
    characters |= {name for name in names | currencies if len(name) == 1}
    parts = [re.escape(name).replace("\\ ", " ") for name in removed]
    if characters:
        distinct = "".join(sorted(characters))
        parts.append(distinct if len(distinct) == 1 and distinct not in ".$" else f"[{distinct}]")
    steps = [("|".join(parts), "")] if parts else []
    if point == "," and any("," in match["digits"] for match in matches):
        steps.append((",", "."))
    if any(sign in match.string for match in matches for sign in "−–"):
        steps.append(("[−–]", "-"))
    forms = []
    if any(match["open"] for match in matches):
        forms.append(r"^\((.*)\)$")
    if any(match["minus"] for match in matches):
        forms.append("^(.*)-$")
    if forms:
        steps.append(("|".join(forms), "-" + "".join(rf"\{number}" for number in range(1, len(forms) + 1))))
    return steps + powers


def _stem(name: str) -> str:
    """Return a unit without what does not distinguish it: upper case, a point, the plural."""
    name = name.casefold().rstrip(".")
    return name[:-1] if name.endswith("s") and len(name) > 2 else name


def warn_of_text(features: Sequence[Feature], named: bool, category_kinds: Sequence[Mapping[str, int]] = ()) -> None:
    """Warn of features of text that look like numbers or dates, when a table without a model has been read; and of features
    with categories that are numbers and others that are the same numbers as text.

    named : whether the table names its columns; category_kinds : see `Reader.category_kinds`; empty if the rows are in no
    partitions.
    """
    for j, feature in enumerate(features):
        form = find(feature.categories or ())
        if form is not None:
            column = f"frame[{feature.name!r}]" if named else f"pandas.Series(array[:, {j}])"
            warn(
                f"column {feature.name!r} holds text and is categorical: {form.n_alike:,} of its {form.n_levels:,} "
                f"categories {form.description}; convert it if it is meant to be numeric, in pandas by {form.convert(column)}"
            )
    for feature, first in zip(features, category_kinds or ({},) * len(features), strict=True):
        twins = _twins(feature.categories or ())
        if twins is not None:
            (kind,) = kinds_of(twins[:1])
            apart = kind in first and TEXT in first and first[kind] != first[TEXT]
            where = f" ({kind} in partition {first[kind]}, text in partition {first[TEXT]})" if apart else ""
            warn(
                f"column {feature.name!r} has both {kind} and text as categories{where}, and {twins[0]!r} and {twins[1]!r} are "
                f"different ones: make all of them text, or all of them {kind}"
            )


def _twins(categories: Sequence[Level]) -> tuple[Level, str] | None:
    """Return the first category that is a number and has another one with its text, and that text; None without one."""
    if len(kinds_of(categories)) < 2:
        return None
    text = {level for level in categories if isinstance(level, str)}
    return next(((level, str(level)) for level in categories if not isinstance(level, str) and str(level) in text), None)
