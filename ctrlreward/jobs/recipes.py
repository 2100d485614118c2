"""Command `ctrlreward recipes`: the YAML files of training jobs, listed, printed and copied."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import yaml

from ctrlreward import configs
from ctrlreward.arguments import did_you_mean
from ctrlreward.command_line.config_files import nested, read_config, read_job
from ctrlreward.command_line.terminal import plain_parser, user_errors
from ctrlreward.files import write_whole

_DESCRIPTION = """The training recipes that ship with the package: what there is, what a recipe has,
and a copy to change. 'ctrlreward train FILE' trains a recipe."""

_EXAMPLES = (
    "ctrlreward recipes ls",
    "ctrlreward recipes show topic_smollm2 --resolve",
    "ctrlreward recipes copy sentiment_smollm2 my_recipes",
)

_FOLDER = Path(configs.__path__[0])
EXAMPLE = _FOLDER / "controlled_generation" / "sentiment_smollm2.yaml"

# A recipe in a command of a comment.
_SHIPPED = re.compile(r"\bconfigs/(\w+/\w+\.yaml)")


def run(arguments: list[str]) -> None:
    """List recipes, print one, or copy it."""
    parser = plain_parser("ctrlreward recipes", _DESCRIPTION, _EXAMPLES)
    actions = parser.add_subparsers(dest="action", required=True, metavar="{ls,show,copy}")
    purpose = "print each recipe with its task, and its time where it is known"
    actions.add_parser("ls", aliases=["list"], help=purpose, description=purpose)
    purpose = "print a recipe"
    show = actions.add_parser("show", help=purpose, description=purpose, allow_abbrev=False)
    purpose = "copy a recipe, the recipes that it extends, and those that train models for it"
    copy = actions.add_parser("copy", help=purpose, description=purpose)
    for action in (show, copy):
        action.add_argument("name", metavar="NAME", help="recipe, such as topic_smollm2")
    show.add_argument(
        "--resolve", action="store_true", help="merge what the recipe extends into one file"
    )
    copy.add_argument("folder", metavar="FOLDER", type=Path, help="where the copy goes")
    given = parser.parse_args(arguments)
    with user_errors():
        if given.action == "show":
            print(recipe_text(given.name, given.resolve), end="")
        elif given.action == "copy":
            copy_recipe(given.name, given.folder)
        else:
            list_recipes()


def recipe_files() -> dict[str, Path]:
    """Return the file of each recipe by its name; names are unique across folders."""
    return {file.stem: file for file in sorted(_FOLDER.glob("*/*.yaml"))}


def recipe_file(name: str) -> Path:
    """Return the file of a recipe, given its name or a path that ends in it."""
    files = recipe_files()
    stem = name.removesuffix(".yaml").rpartition("/")[2]
    if stem not in files:
        hint = did_you_mean(stem, files, str)
        raise ValueError(f"No such recipe: {name!r}{hint}. 'ctrlreward recipes ls' lists them.")
    return files[stem]


def task_and_time(file: Path) -> tuple[str, str]:
    """Return the first sentence of the comment at the head of a file, and what it says of time."""
    head = re.match(r"(?:# .*\n)*", file.read_text(encoding="utf-8"))
    # Commands in the comment are indented.
    text = " ".join(head[0].partition("\n#  ")[0].replace("# ", "").split()) if head else ""
    sentences = re.split(r"(?<=[.?]) (?=[A-Z])", text)
    time = next((each for each in sentences if each.startswith("Takes ")), "")
    return sentences[0].rstrip(".:"), time.removeprefix("Takes ").rstrip(".")


def list_recipes() -> None:
    """Print a line for each recipe, by folder."""
    files = recipe_files()
    width = max(map(len, files)) + 2
    folder = ""
    for name, file in files.items():
        if file.parent.name != folder:
            folder = file.parent.name
            print(f"{folder}:")
        task, time = task_and_time(file)
        print(f"  {name:<{width}}{task}{f' [{time}]' if time else ''}")


def recipe_text(name: str, resolve: bool = False) -> str:
    """Return a recipe as it is written, or merged with what it extends, as one YAML file."""
    file = recipe_file(name)
    if not resolve:
        return file.read_text(encoding="utf-8")
    return yaml.safe_dump(read_job(file), sort_keys=False, allow_unicode=True)


def copy_recipe(name: str, folder: Path) -> None:
    """Copy a recipe with all files that it names, side by side, and print how to train it.

    Raises:
        ValueError: There is no such recipe.
        FileExistsError: A file of the folder differs from what would be copied; none is copied.
    """
    first = recipe_file(name).resolve()
    files = [first]
    for file in files:  # grows
        named = [value for value in nested(read_config(file)) if isinstance(value, str)]
        named += [f"../{other}" for other in _SHIPPED.findall(file.read_text(encoding="utf-8"))]
        for other in (file.parent / each for each in named if each.endswith(".yaml")):
            if other.is_file() and other.resolve() not in files:
                files.append(other.resolve())
    texts = {folder / file.name: _moved(file, folder) for file in files}
    present = {path: text for path, text in texts.items() if path.exists()}
    changed = [str(path) for path in present if path.read_text(encoding="utf-8") != present[path]]
    if changed:
        raise FileExistsError(
            f"{', '.join(changed)} would be replaced, and differs from the recipe. Choose "
            "another folder, or delete the file."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        write_whole(path, text)
        print(path)
    # Some files extend a recipe or belong to another command; see their comments.
    if "class_path" in read_job(first).get("model", ()):
        copied = shlex.quote(str(folder / first.name))
        print(f"to try it: ctrlreward train {copied} --smoke", file=sys.stderr)


def _moved(file: Path, folder: Path) -> str:
    """Return the text of a file with the names that other recipes have in the folder."""
    text = re.sub(r"\.\./\w+/(?=\w+\.yaml)", "", file.read_text(encoding="utf-8"))
    return _SHIPPED.sub(lambda found: str(folder / Path(found[1]).name), text)
