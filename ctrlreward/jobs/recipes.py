"""Command `ctrlreward recipes`: the YAML files of training jobs, listed, printed and copied."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import yaml

from ctrlreward import configs
from ctrlreward.command_line.config_files import read_config, read_job
from ctrlreward.command_line.terminal import plain_parser, user_errors
from ctrlreward.files import write_whole

_DESCRIPTION = """The training recipes that ship with the package: what there is, what a recipe has,
and a copy to change. 'ctrlreward train FILE' trains a recipe."""

_EXAMPLES = (
    "ctrlreward recipes ls",
    "ctrlreward recipes show topic_smollm2",
    "ctrlreward recipes copy sentiment_smollm2 my_recipes",
)

_FOLDER = Path(configs.__path__[0])
EXAMPLE = _FOLDER / "controlled_generation" / "sentiment_smollm2.yaml"


def run(arguments: list[str]) -> None:
    """List recipes, print one, or copy it."""
    parser = plain_parser("ctrlreward recipes", _DESCRIPTION, _EXAMPLES)
    actions = parser.add_subparsers(dest="action", required=True, metavar="{ls,show,copy}")
    purpose = "print each recipe with its task"
    actions.add_parser("ls", help=purpose, description=purpose)
    purpose = "print a recipe, and what it extends, as one file"
    show = actions.add_parser("show", help=purpose, description=purpose)
    purpose = "copy a recipe, and what it extends, as one file"
    copy = actions.add_parser("copy", help=purpose, description=purpose)
    for action in (show, copy):
        action.add_argument("name", metavar="NAME", help="recipe, such as topic_smollm2")
    copy.add_argument("folder", metavar="FOLDER", type=Path, help="where the copy goes")
    given = parser.parse_args(arguments)
    with user_errors():
        if given.action == "show":
            print(recipe_text(given.name), end="")
        elif given.action == "copy":
            copy_recipe(given.name, given.folder)
        else:
            list_recipes()


def recipe_files() -> dict[str, Path]:
    """Return the file of each recipe by its name; names are unique across folders."""
    return {file.stem: file for file in sorted(_FOLDER.glob("*/*.yaml"))}


def recipe_file(name: str) -> Path:
    """Return the file of a recipe, given its name."""
    files = recipe_files()
    if name not in files:
        raise ValueError(f"No such recipe: {name!r}. 'ctrlreward recipes ls' lists them.")
    return files[name]


def list_recipes() -> None:
    """Print the first sentence of each recipe, by folder."""
    files = recipe_files()
    width = max(map(len, files)) + 2
    folder = ""
    for name, file in files.items():
        if file.parent.name != folder:
            folder = file.parent.name
            print(f"{folder}:")
        comment = _comment(file.read_text(encoding="utf-8")).replace("# ", "").split()
        print(f"  {name:<{width}}{re.split('[.:?] ', ' '.join(comment))[0].rstrip('.')}")


def _comment(text: str) -> str:
    """Return the comment at the head of a file."""
    head = re.match(r"(?:#.*\n)*", text)
    return head[0] if head else ""


def recipe_text(name: str) -> str:
    """Return a recipe with its comment and what it extends as one file.

    Other files that it names are named by paths that lead to them from here.
    """
    file = recipe_file(name)
    text, content = file.read_text(encoding="utf-8"), read_job(file)
    if content == read_config(file):
        return text
    return _comment(text) + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def copy_recipe(name: str, folder: Path) -> None:
    """Copy a recipe, with what it extends, as one file, and print how to train it."""
    path, text = folder / recipe_file(name).name, recipe_text(name)
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise FileExistsError(f"{path} differs from the recipe. Delete it, or use another folder.")
    write_whole(path, text)
    print(path)
    # Some files extend a recipe or belong to another command; see their comments.
    if "class_path" in read_config(path).get("model", ()):
        print(f"to try it: ctrlreward train {shlex.quote(str(path))} --smoke", file=sys.stderr)
