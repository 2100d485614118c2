"""One line on a mistake in a configuration: its file, its line, its key, and the right name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib import import_module
from inspect import signature
from typing import Any, NamedTuple, get_args, get_type_hints

from ctrlreward.arguments import did_you_mean
from ctrlreward.command_line.config_files import ConfigFile

# Lines of a parser's error that lead to the mistake, with the space or the dash before them.
_STEP = re.compile(r"^([ -]*)(?:Parser key \"(.+)\"|Problem with given class_path '(.+)'):$")
_LINE = re.compile(r"^([ -]*)(.*)$")
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
_NO_MODULE = re.compile(r"No module named '[\w.]+'$")
_TYPE = re.compile(r"Expected an? (?:<class '(.+?)'>|(?:typing\.)?(.*?))\. Got value: ?(.*)")
_NO_FILE = re.compile(r"\[Errno 2\] .*: '(.+)'")
_BARE_TYPE = re.compile(r"Expected a <class '(bool|int|float|str)'>$")
_LITERAL = re.compile(r"Literal\[(.*)\]")


class _Mistake(NamedTuple):
    """A line of a parser's error, and its location."""

    keys: tuple[str, ...]  # from the top, with `init_args` below each class
    path: str  # import path of the innermost class; "" for none
    text: str  # message of the parser


def one_line(message: str, files: Sequence[ConfigFile], arguments: Sequence[str] = ()) -> str:
    """Return the mistake in one line, from an error of the parser.

    The parser lists all possible types of a value, and repeats the value. The innermost
    line of its message is about the mistake. Files are in the order in which they apply.
    """
    if no_file := _NO_FILE.search(message):
        return missing(no_file[1], files)
    if not re.search(r"Parser key|Does not validate|Problem with given", message):
        return message
    mistakes = list(_mistakes(message))
    if not mistakes:
        return " ".join(message.partition("Given value")[0].split())
    keys, path, text = max(
        mistakes, key=lambda mistake: (not _OTHER_TYPE.match(mistake.text), len(mistake.keys))
    )
    if not keys:  # raised by a class
        return text
    kinds = [m[1] for line in message.splitlines() if (m := _BARE_TYPE.search(line))]
    if _BARE_TYPE.match(text) and kinds:  # none of the types of a union
        problem = f"must be {' or '.join(dict.fromkeys(kinds))}"
    else:
        keys, problem = _described(keys, path, text)
    if not problem.startswith(":"):
        problem = f" {problem}"
    dotted = ".".join(key for key in keys if not key.startswith("="))
    for argument in arguments:
        option = argument.partition("=")[0].rstrip("+")
        if option.replace(".init_args", "") == f"--{dotted}":
            return f"{option}{problem}"
    if not files:
        return f"{dotted}{problem}"
    # The last file that has most of the keys.
    found = [(*_located(file.content, keys), file) for file in reversed(files)]
    _, place, file = max(found, key=lambda each: each[0])
    shown = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", ".".join(place))
    return f"{file.path}:{file.line(place)}: {shown}{problem}"


def missing(path: str, files: Sequence[ConfigFile]) -> str:
    """Return that a file does not exist, with the key that names it."""
    for file in reversed(files):
        for keys, value in file.values():
            if value == path:
                place = f"{file.path}:{file.line(keys)}: {'.'.join(keys)}"
                return f"{place} = {path}: no such file"
    return f"No such file: {path}"


def _mistakes(message: str) -> list[_Mistake]:
    way: list[tuple[int, str, str]] = []
    found: list[_Mistake] = []
    for line in message.splitlines():
        step = _STEP.match(line)
        space, text = _LINE.match(line).groups()  # type: ignore[union-attr]
        while way and way[-1][0] >= len(space):
            way.pop()
        if step:
            way.append((len(space), step[2] or "", step[3] or ""))
        elif text and not _NOISE.match(text):
            keys = [
                key for _, key, path in way for key in ([f"={path}"] if path else key.split("."))
            ]
            paths = [path for _, _, path in way if path]
            found.append(_Mistake(tuple(keys), paths[-1] if paths else "", text))
    return found


def _described(keys: tuple[str, ...], path: str, text: str) -> tuple[tuple[str, ...], str]:
    """Return the keys of a mistake and the words for it."""
    if unknown := _UNKNOWN.search(text):
        whole, group, option, argument = unknown.groups(default="")
        name = ".".join(filter(None, (whole or argument, group, option)))
        return _unknown(keys, path, tuple(name.split(".")))
    if absent := _ABSENT.search(text):
        module, name = (absent[1] or absent[3], absent[2] or absent[4])
        names: list[str] = []
        with suppress(ImportError):
            names = dir(import_module(module))
        return (*keys, "class_path"), f"= {path}: {module} has no {name}{did_you_mean(name, names)}"
    if wrong := _TYPE.search(text):
        expected, found = wrong[1] or wrong[2], wrong[3]
        if choice := _LITERAL.match(expected):
            names = choice[1].replace("'", "").split(", ")
            expected = f"one of {', '.join(names)}"
            return keys, f"must be {expected}, got {found!r}{did_you_mean(found, names)}"
        return keys, f"must be {expected}, got {found!r}"
    if text.startswith("the following arguments are required: "):
        return keys, f"lacks {text.partition(': ')[2]}"
    fix = ". Install it, or add its folder to PYTHONPATH." if _NO_MODULE.match(text) else ""
    return keys, f": {text[:1].lower()}{text[1:]}{fix}"


def _unknown(
    keys: tuple[str, ...], path: str, names: tuple[str, ...]
) -> tuple[tuple[str, ...], str]:
    """Return the keys down to the first that does not exist, and the similar one that does."""
    module, _, name = path.rpartition(".")
    kind = getattr(import_module(module), name) if path else None
    known = list(signature(kind).parameters) if kind else []
    hint = did_you_mean(names[0], ("init_args", "class_path"))
    if hint and names[0] not in known and keys[-1:] == (f"={path}",):
        return (*keys[:-1], names[0]), f"is not a key{hint}"
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


def _located(content: Any, keys: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """Return how many of the keys a file has, and the path to the last one."""
    place: tuple[str, ...] = ()
    count = 0
    for key, following in zip(keys, [*keys[1:], ""], strict=True):
        if key.startswith("="):
            inner = _place_of_class(content, key[1:])
            if inner is None:  # a group of options, whose class is not named
                continue
            for each in inner:
                content = content[int(each) if isinstance(content, list) else each]
            place += inner
            if following in ("", "class_path"):
                continue
            key = "init_args"
        place += (key,)
        if isinstance(content, dict) and key in content:
            content = content[key]
            count += 1
    return count, place


def _place_of_class(content: Any, path: str) -> tuple[str, ...] | None:
    """Return the path of keys to a class path in a mapping or a list."""
    if isinstance(content, dict) and content.get("class_path") == path:
        return ()
    inner = enumerate(content) if isinstance(content, list) else ()
    for key, value in content.items() if isinstance(content, dict) else inner:
        place = _place_of_class(value, path)
        if place is not None:
            return (str(key), *place)
    return None
