"""English function words, which carry no content."""

from __future__ import annotations

_DETERMINERS = """
    a an the this that these those some any each all both few more most other such no own same
"""
_PRONOUNS = """
    i me my mine myself we us our ours ourselves you your yours yourself yourselves
    he him his himself she her hers herself it its itself they them their theirs themselves
    who whom whose which what
"""
_AUXILIARIES = """
    am is are was were be been being have has had having do does did doing
    can cannot could may might must ought shall should will would
"""
_PREPOSITIONS = """
    about above after against at before below between by down during for from in into of off on
    out over through to under up with
"""
_CONJUNCTIONS = "and but or nor if because as until while than so"
_ADVERBS = """
    again further then once here there when where why how not only too very just now
"""
_BEFORE_NOT = """
    ai are ca could did do does had has have is might must need sha should was were wo would
"""
_ENDINGS = "d ll m re s ve"
_BEFORE_ENDINGS = "i you he she it we they that there here who what"


def _contractions() -> set[str]:
    """Return contractions and the pieces left if a tokenizer splits them at the apostrophe.

    For example `don't`, `don` and `t`; `they're` and `re`.
    """
    endings = _ENDINGS.split()
    words = {"t", *endings}
    for verb in _BEFORE_NOT.split():
        words |= {f"{verb}n", f"{verb}n't"}
    for word in _BEFORE_ENDINGS.split():
        words |= {f"{word}'{ending}" for ending in endings}
    return words


ENGLISH_STOP_WORDS = frozenset(
    word
    for group in (
        _DETERMINERS,
        _PRONOUNS,
        _AUXILIARIES,
        _PREPOSITIONS,
        _CONJUNCTIONS,
        _ADVERBS,
    )
    for word in group.split()
) | frozenset(_contractions())
