"""One line on a mistake in a configuration: its file, its line, its key, and the right name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib import import_module
from inspect import signature
from typing import Any, TypeAlias, get_args, get_type_hints

from ctrlreward.arguments import did_you_mean
from ctrlreward.command_line.config_files import ConfigFile

# Keys from the top; `=` and an import path is a class, whose keys are below its `init_args`.
Keys: TypeAlias = tuple[str, ...]

# Lines of a parser's error that lead to the mistake.
_STEP = re.compile(r"(?:Parser key \"(.+)\"|Problem with given class_path '(.+)'):$")
# Lines that repeat the configuration or its types.
_NOISE = re.compile(
    r"Subtypes: |Errors:|Given value|Does not validate|Not a valid subclass|Subclass types expect|"
    r"a class path|a dict |Expected a <class 'NoneType'>"
)
# Lines on another type that the value might have had; another line is more likely to help.
_OTHER_TYPE = re.compile(
    r"Subclasses are disabled|Import path .* does not correspond|Expected a <class '\w+'>$"
)
_UNKNOWN = re.compile(
    r"(?:Option|Key) '([\w.]+)' is not (?:accepted|expected)|"
    r"Group '([\w.]+)' does not accept option '([\w.]+)'|[Uu]nrecognized arguments: --([\w.]+)"
)
_ABSENT = re.compile(r"No (\S+) attribute (\w+)|module '(\S+)' has no attribute '(\w+)'")
_NO_MODULE = re.compile(r"^(?:.*: )?(No module named '[\w.]+')(?:\. Got value: .*)?$")
_FIXES = {
    "No module named": ". Install it, or add its folder to PYTHONPATH.",
    "Unexpected import path": ". Write it with dots, as in package.module.name.",
    "to a subclass of Scorer": ". For a function, use FunctionScorer and its option function.",
}
_TYPE = re.compile(
    r"Expected an? (?!dot import path)"
    r"(?:<class '(.+?)'>|(?:typing\.)?(.*?))(?:\. Got value: ?(.*))?$"
)
_NO_FILE = re.compile(r"\[Errno 2\] .*: '(.+)'")
# An object in the place of a function.
_CALLED = re.compile(r"Got value: Namespace\(class_path='([\w.]+)', init_args=Namespace\((.*)\)\)$")


def one_line(message: str, files: Sequence[ConfigFile], arguments: Sequence[str] = ()) -> str:
    """Return the mistake in one line, from an error of the parser.

    The parser lists all possible types of a value, and repeats the value. The innermost
    line of its message is about the mistake. Files are in the order in which they apply.
    """
    if no_file := _NO_FILE.search(message):
        return missing(no_file[1], files)
    if not re.search(r"Parser key|Does not validate|Problem with given", message):
        return message
    found = list(_mistakes(message))
    if not found:
        return " ".join(message.partition("Given value")[0].split())
    keys, text = max(found, key=lambda m: (not _OTHER_TYPE.match(m[1]), len(m[0]), "Got" in m[1]))
    if not keys:  # raised by a class
        return text
    if (kind := _TYPE.search(text)) and kind[3] is None:  # none of the types of a union
        kinds = [_TYPE.search(other) for place, other in found if place == keys]
        value = message.partition("Given value: ")[2].partition("\n")[0]
        problem = _wrong_type([each for each in kinds if each], value or None)
    else:
        keys, problem = _described(keys, text)
    problem = problem if problem.startswith(":") else f" {problem}"
    dotted = ".".join(key for key in keys if not key.startswith("="))
    for argument in arguments:
        option = argument.partition("=")[0].rstrip("+")
        if option.replace(".init_args", "") == f"--{dotted}":
            return f"{option}{problem}"
    if not files:
        return f"{dotted}{problem}"
    # The last file that has most of the keys.
    file = max(reversed(files), key=lambda each: _depth(_located(each, keys), each))
    place = _located(file, keys)
    shown = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", ".".join(place))
    return f"{file.path}:{file.line(place)}: {shown}{problem}"


def missing(path: str, files: Sequence[ConfigFile]) -> str:
    """Return that a file does not exist, with the key that names it."""
    for file in reversed(files):
        for keys, value in file.values():
            if value == path:
                return str(file.error(keys, f"= {path}: no such file"))
    return f"No such file: {path}"


def _mistakes(message: str) -> Iterator[tuple[Keys, str]]:
    """Yield the lines of a parser's error, with the keys and classes (`=path`) that lead there."""
    way: list[tuple[int, Keys]] = []
    for line in message.splitlines():
        text = line.lstrip(" -")
        space = len(line) - len(text)
        while way and way[-1][0] >= space:
            way.pop()
        if step := _STEP.match(text):
            way.append((space, tuple(step[1].split(".")) if step[1] else (f"={step[2]}",)))
        elif text and not _NOISE.match(text):
            yield tuple(key for _, keys in way for key in keys), text


def _described(keys: Keys, text: str) -> tuple[Keys, str]:
    """Return the keys of a mistake and the words for it."""
    if called := _CALLED.search(text):
        if called[1] == "typing.Any":  # the parser's class for a mapping
            given = ", ".join(re.findall(r"(\w+)=", called[2]))
            return keys, f"must be an import path, or class_path and init_args, got {given}"
        keys = (*keys, f"={called[1]}")
    path = next((key[1:] for key in reversed(keys) if key.startswith("=")), "")
    if unknown := _UNKNOWN.search(text):
        return _unknown(keys, path, tuple(".".join(filter(None, unknown.groups())).split(".")))
    if absent := _ABSENT.search(text):
        module, name = filter(None, absent.groups())
        names: list[str] = []
        with suppress(ImportError):
            names = dir(import_module(module))
        if keys[-1] == f"={path}":
            keys = (*keys, "class_path")
        return keys, f"= {module}.{name}: {module} has no {name}{did_you_mean(name, names)}"
    if wrong := _TYPE.search(text):
        return keys, _wrong_type([wrong], wrong[3])
    if text.startswith("the following arguments are required: "):
        of = f" of {path.rpartition('.')[2]}" if path else ""
        return keys, f"lacks {text.partition(': ')[2]}{of}"
    text = _NO_MODULE.sub(r"\1", text)
    fix = next((fix for part, fix in _FIXES.items() if part in text), "")
    return keys, f": {text[:1].lower()}{text[1:]}{fix}"


def _wrong_type(kinds: Sequence[re.Match[str]], value: str | None) -> str:
    """Return the words for a value of none of some types, given by `_TYPE`."""
    expected = [kind[1] or kind[2] for kind in kinds]
    names = re.findall(r"'(.*?)'", " ".join(expected))  # of a Literal
    words = [f"one of {', '.join(dict.fromkeys(names))}"] if names else []
    words += dict.fromkeys(each for each in expected if "'" not in each)
    types = " or ".join(words).replace("collections.abc.Sequence", "list")
    got = "" if value is None else f", got {value!r}{did_you_mean(value, names)}"
    return f"must be {types}{got}"


def _unknown(keys: Keys, path: str, names: Keys) -> tuple[Keys, str]:
    """Return the keys down to the first that does not exist, and the similar one that does."""
    module, _, name = path.rpartition(".")
    kind = getattr(import_module(module), name) if path else None
    known = list(signature(kind).parameters) if kind else []
    for i, name in enumerate(names):
        if name not in known:
            return (*keys, *names[: i + 1]), f"is not an option{_hint(kind, name, known)}"
        kind = _type_of(kind, name)
        known = [field.name for field in fields(kind)] if kind else []
    return (*keys, *names), "is not an option"


def _hint(kind: Any, name: str, known: Sequence[str]) -> str:
    """Return the suggestion: the new name, a similar one, or the list of all."""
    instead = getattr(kind.__init__ if isinstance(kind, type) else kind, "our_names", {})  # type: ignore[misc]
    if name in instead:
        groups = "objective|generation|optimizer|critic|lora"  # of PolicyTuner: paths here
        option = re.sub(rf"^({groups})=\w+\((\w+)=\.\.\.\)$", r"\1.\2", instead[name])
        return f". Use {option}."
    return did_you_mean(name, known) or (f", only {', '.join(known)}" if known else "")


def _type_of(owner: Any, argument: str) -> Any:
    """Return the dataclass that an argument takes; None if there is none, or if it is unknown."""
    with suppress(NameError, TypeError):
        build = owner.__init__ if isinstance(owner, type) else owner  # type: ignore[misc]
        hint = get_type_hints(build)[argument]
        for kind in (hint, *get_args(hint)):
            if isinstance(kind, type) and is_dataclass(kind):
                return kind
    return None


def _located(file: ConfigFile, keys: Keys) -> Keys:
    """Return the place of a mistake in a file, which may lack the last keys."""
    place: Keys = ()
    for key, following in zip(keys, [*keys[1:], ""], strict=True):
        if not key.startswith("="):
            place += (key,)
            continue
        inner = (
            each[:-1]
            for each, value in file.values()
            if each[: len(place)] == place and each[-1] == "class_path" and value == key[1:]
        )
        if (found := next(inner, None)) is not None:  # else a group, whose class is not named
            place = found if following in ("", "class_path") else (*found, "init_args")
    return place


def _depth(place: Keys, file: ConfigFile) -> int:
    """Return how many of the keys a file has."""
    return next((n for n in range(len(place), 0, -1) if place[:n] in file.lines), 0)
