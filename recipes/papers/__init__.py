"""Reproductions of papers, a folder each; the library imports none of them.

`ctrlreward papers` lists the programs.
"""

from __future__ import annotations

import importlib
import sys

from ctrlreward.arguments import did_you_mean

# Each program is a module with `main(arguments)`, which is imported only when it is used.
PROGRAMS = {
    "transfer-table": (
        "textual_transfer.transfer_table",
        "Tables 2 and 3 of textual transfer, of runs of yours",
    ),
    "preference-sheet": (
        "li2018.preference_sheet",
        "blinded pairs of outputs for people to compare",
    ),
    "win-rates": ("li2018.win_rates", "Table 4 of textual transfer, of filled sheets"),
    "literature": ("textual_transfer.literature", "sentences of two literary styles out of books"),
}

# Papers whose tables, figures and commands `overview` lists.
PAPERS = {
    "ctrleval": "Ke et al. 2022, CTRLEval",
    "ctc": "Deng et al. 2021, CTC",
    "transfer": "Pang and Gimpel 2019, textual transfer",
    "reproduction": "Lorandi and Belz 2024, a reproduction study; its Tables 3 and 4 computed",
}

USAGE = "\n".join(
    [
        "usage: ctrlreward papers NAME ...",
        "",
        "A paper's tables and figures: the command of each, its cost, and what it printed:",
        *(f"  {name:<18}{title}" for name, title in PAPERS.items()),
        "",
        "Programs:",
        *(f"  {name:<18}{purpose}" for name, (_, purpose) in PROGRAMS.items()),
        "",
        "Run 'ctrlreward papers NAME --help' to see the options. 'ctrlreward meta-eval' has the",
        "rated files of the papers, and 'ctrlreward train' trains their models.",
    ]
)


def run(arguments: list[str]) -> None:
    """Run a program.

    Raises:
        SystemExit: With status 2 without a name, or after an unknown one or a wrong option.
    """
    name = arguments[0].replace("_", "-") if arguments else ""
    if name in PROGRAMS:
        importlib.import_module(f"{__name__}.{PROGRAMS[name][0]}").main(arguments[1:])
    elif name in PAPERS:
        importlib.import_module(f"{__name__}.overview").main(name, arguments[1:])
    elif name in ("-h", "--help", "help"):
        print(USAGE)
    else:
        hint = did_you_mean(name, [*PAPERS, *PROGRAMS], str)
        error = f"\n\nerror: No such program: {arguments[0]!r}{hint}" if arguments else ""
        print(f"{USAGE}{error}", file=sys.stderr)
        raise SystemExit(2)
