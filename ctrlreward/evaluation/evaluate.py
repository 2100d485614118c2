"""Command `ctrlreward evaluate`: a controlled generator under a protocol of n texts per prompt.

With `--protocol`, the released outputs of one.
"""

from __future__ import annotations

from ctrlreward.command_line.typed_options import gather_words

_DESCRIPTION = """Generate texts for every prefix with every combination of labels, and measure
accuracy per attribute, perplexity and Distinct-1/2/3, by combination and over all.
With --protocol lorandi, measure a file of released outputs as a published study does.

Repeat the command to resume an interrupted run."""

_EXAMPLES = (
    "ctrlreward evaluate smollm2-135m --labels sentiment=negative,positive "
    "--template 'A {sentiment} review: {prefix}' --prefixes prefixes.txt --output untuned",
    "ctrlreward evaluate runs/tuned/adapter --labels sentiment=negative,positive "
    "--template 'A {sentiment} review: {prefix}' --prefixes prefixes.txt --output tuned",
    "ctrlreward compare untuned tuned",
    "ctrlreward evaluate multicontrol/generate_prior.txt --protocol lorandi --output prior",
)

_USAGE = "MODEL --labels ATTRIBUTE=LABEL,LABEL ... --template TEXT --output FOLDER [options]"
_RELEASED = "FILE --protocol lorandi --output FOLDER [options]"

# Options that take lists of words, and their other names.
_LISTS = {"--labels", "--classifiers", "--label_map"}
_OTHER_NAMES = {
    "--label": "--labels",
    "--attributes": "--labels",
    "--classifier": "--classifiers",
    "--num_generations": "--completions",
    "--max_new_tokens": "--max_tokens",
}


def run(arguments: list[str]) -> None:
    """Evaluate a generator, or resume an interrupted run."""
    arguments = gather_words([_renamed(argument) for argument in arguments], _LISTS)
    from ctrlreward.command_line.parser import command_parser
    from ctrlreward.command_line.terminal import ABOUT_BITSANDBYTES, hide_messages, user_errors

    hide_messages(ABOUT_BITSANDBYTES)
    from ctrlreward.evaluation.job import evaluate_generator
    from ctrlreward.evaluation.released import evaluate_outputs

    released = any(argument.partition("=")[0] == "--protocol" for argument in arguments)
    usage = _RELEASED if released else f"{_USAGE}\n       ctrlreward evaluate {_RELEASED}"
    function = evaluate_outputs if released else evaluate_generator
    parser = command_parser("ctrlreward evaluate", usage, _DESCRIPTION, _EXAMPLES)
    parser.add_argument("--config", action="config", help="YAML file with options")
    parser.add_function_arguments(function, as_group=False, as_positional=True)
    config = parser.parse_args(arguments)
    with user_errors(resumes=lambda: True, maps_labels=True):
        options = parser.instantiate(config).as_dict()
        options.pop("config")
        function(**options)


def _renamed(argument: str) -> str:
    option, equals, value = argument.partition("=")
    return _OTHER_NAMES.get(option, option) + equals + value
