"""Rewriting of English sentences by rules that keep meaning and style."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

# Phrases that may stand for each other; with `>`, only the second for the first. Tokenized, lower
# case. None that has a second common sense in the same place ("happy hour", "really liked").
_PHRASES = """
very > really; very much > so much; the very best > the absolute best; extremely > very
super > very; incredibly > very; so very > very
definitely = certainly; absolutely > completely; totally = completely; probably > most likely
maybe = perhaps; especially = particularly; mostly = mainly; almost = nearly; usually = normally
often = frequently; immediately = right away; unfortunately = sadly
luckily = fortunately; obviously = clearly; basically > essentially; actually > in fact
eventually = in the end; currently > at present; quickly > rapidly; right now > at the moment
a lot of = lots of; tons of > lots of; plenty of > lots of; several > a few; a couple of > a few
a little bit of > some; a bit of > some; all of the = all the; most of the time > usually
everyone = everybody; anyone = anybody; someone = somebody; no one = nobody
every time = each time; the whole = the entire; as well . = too .
, but = , yet; because of = due to; even though = although
instead of = rather than; except for = apart from; next to = beside; close to = near
until = till; in order to > to; overall , = all in all ,; so far = until now; of course > naturally
as usual = as always; however , > still ,; on top of that > in addition; about _num_ = around _num_
over _num_ = more than _num_; less than _num_ = under _num_; at least _num_ > _num_ or more
this place = this spot; this restaurant > this eatery; this location > this place
the staff > the team; employees = workers; waitress > server; waiter > server; kids = children
these guys > these people; folks > people; mom = mother; dad = father; movie = film
photos = pictures; the store = the shop; this store = this shop; the price > the cost
appetizers = starters; veggies = vegetables; beverages > drinks; restroom = bathroom
neighborhood > area; my car = my vehicle; employee = worker; a guy > a man; the guy > the man
would recommend > would suggest; highly recommend > strongly recommend; enjoyed > liked
bought = purchased; needed to > had to; have to = need to; has to = needs to
decided to = chose to; wanted to > wished to; started to = began to; showed up = arrived
seems to = appears to; looks like = seems like; will return = will come back = will be back
will go back > will return; would go back > would return; 'll be back = 'll return = 'll come back
be coming back > be returning; be going back > be returning; stopped by = dropped by
stop by = drop by; helped > assisted; fixed = repaired; thank you for = thanks for
found out > learned; went to the > visited the; went to this > visited this
great > excellent; wonderful = fantastic; awesome = amazing; delicious = tasty; yummy > tasty
awful = terrible = horrible; large > big; enormous > huge; inexpensive > cheap
expensive = pricey; nice = pleasant; rude > impolite; ok = okay; happy with = pleased with
impressed with = impressed by; disappointed with = disappointed in; pretty good > quite good
pretty nice > quite nice; pretty cool > quite cool; pretty decent > quite decent
pretty bad > quite bad; tiny > very small; difficult to = hard to
"""

_AUXILIARIES = "do|does|did|is|are|was|were|has|have|had|would|could|should"
_SUBJECTS = "i|you|he|she|it|we|they"
# After `'s`, these say that it is `has`.
_PARTICIPLES = "been|got|gone|had|become|changed|always been|never been"
# A form, and the form that takes its place; none where a question needs it ("did n't we").
_CONTRACTIONS: list[tuple[str, str]] = [
    (rf"({_AUXILIARIES}) n't(?! (?:{_SUBJECTS}|the)\b)", r"\1 not"),
    (rf"({_AUXILIARIES}) not(?! only\b)", r"\1 n't"),
    (rf"ca n't(?! (?:{_SUBJECTS})\b)", "can not"),
    (r"(?:can not|cannot)(?! only\b)", "ca n't"),
    (rf"wo n't(?! (?:{_SUBJECTS})\b)", "will not"),
    (r"will not(?! only\b)", "wo n't"),
    (r"i 'm", "i am"),
    (r"i am(?= \w)", "i 'm"),
    (r"(you|we|they) 're", r"\1 are"),
    (r"(you|we|they) are(?= \w)", r"\1 're"),
    (rf"({_SUBJECTS}) 'll", r"\1 will"),
    (rf"({_SUBJECTS}) will(?= \w)(?! not\b)", r"\1 'll"),
    (r"(i|you|we|they) 've", r"\1 have"),
    (r"(i|you|we|they) have(?= (?:been|never|had|ever|tried|eaten)\b)", r"\1 've"),
    (rf"(it|that|there) 's(?! (?:{_PARTICIPLES})\b)", r"\1 is"),
    (r"(it|that|there) is(?= \w)", r"\1 's"),
]

# Two main clauses of which the second does not refer to the first.
_REST = r"(?:(?!(?:and|but|or|so|then|which|that|,) )\S+ ){2,}"
_TWO_CLAUSES = re.compile(
    rf"((?:i|we|you|my|our|the|this) {_REST})(, )?and ((?:my|our|the|this) {_REST})([.!])"
)


def rewrite(text: str, random_: random.Random) -> str:
    """Return a tokenized lower-case text with phrases, contractions and clauses exchanged.

    Every rule that applies is applied; of several phrases that may stand for one, a random one is
    taken. A text to which none applies is returned as it is.

    Examples:
        >>> rewrite("we did n't wait and the staff was very nice .", random.Random(0))
        'the team was really pleasant and we did not wait .'
    """
    text = _CONTRACTION.sub(_other_form, text)
    text = _PHRASE.sub(lambda match: _other_phrase(match, random_), text)
    clauses = _TWO_CLAUSES.fullmatch(text)
    if clauses is None:
        return text
    first, comma, second, end = clauses.groups()
    return f"{second}{comma or ''}and {first}{end}"


def _alternatives() -> dict[str, list[str]]:
    """Return the phrases that may stand for each phrase."""
    found: dict[str, list[str]] = {}
    for entry in _PHRASES.strip().replace("\n", ";").split(";"):
        phrases = [phrase.strip() for phrase in re.split("[>=]", entry)]
        for phrase in phrases if "=" in entry else phrases[:1]:
            found.setdefault(phrase, []).extend(other for other in phrases if other != phrase)
    return found


def _any_of(patterns: Iterable[str], before: str = "") -> re.Pattern[str]:
    return re.compile(rf"(?<!\S){before}(?:{'|'.join(patterns)})(?!\S)")


_RULES = [(_any_of([pattern]), form) for pattern, form in _CONTRACTIONS]
_CONTRACTION = _any_of(pattern for pattern, _ in _CONTRACTIONS)
_ALTERNATIVES = _alternatives()
_LONGEST_FIRST = sorted(map(re.escape, _ALTERNATIVES), key=len, reverse=True)
_PHRASE = _any_of(_LONGEST_FIRST, "(?P<article>an? )?")


def _other_form(found: re.Match[str]) -> str:
    matches = (rule.match(found.string, found.start()) for rule, _ in _RULES)
    return next(m.expand(form) for m, (_, form) in zip(matches, _RULES, strict=True) if m)


def _other_phrase(found: re.Match[str], random_: random.Random) -> str:
    article = found["article"] or ""
    phrase = random_.choice(_ALTERNATIVES[found[0].removeprefix(article)])
    if article:
        article = "an " if phrase[0] in "aeiou" else "a "
    return article + phrase
