"""Custom control variables, one YAML file each: formality and emotion."""

from pathlib import Path

from ctrlreward import Samples
from ctrlreward.scorers import AttributeClassifier, CTRLEval

TASKS = Path(__file__).with_name("tasks")
TEXTS = {
    "formality": [
        "We regret to inform you that your application was not successful.",
        "hey, sorry, you didn't get the job lol",
    ],
    "emotion": [
        "We won the cup, and the whole street danced.",
        "My grandmother died in March, and her chair is empty.",
        "He stole my bike again and laughed about it.",
        "Something moved behind the door, and the light went out.",
    ],
}

if __name__ == "__main__":
    scorers = {}
    for name, texts in TEXTS.items():
        scorers[name] = CTRLEval(task=TASKS / f"{name}.yaml", aspects=["attribute_relevance"])
        print(name, *scorers[name].labels)
        for text, row in zip(texts, scorers[name].probabilities(texts), strict=True):
            print("  ", *(f"{value:.2f}" for value in row), text)
        scorers[name].release()

    # Explain a score: the prompts and verbalizers with the highest and the lowest probability.
    rejection = Samples(TEXTS["formality"][:1], labels=["formal"])
    (parts,) = scorers["formality"].explain(rejection)
    evaluators = sorted(parts["attribute_relevance"].evaluators, key=lambda e: -e.score)
    for e in [evaluators[0], evaluators[-1]]:
        print(f"{e.score:.2f} {e.left}[{e.target}]{e.right}")

    # Combine attributes: the label names one value of each.
    both = AttributeClassifier({name: scorers[name] for name in ("formality", "emotion")})
    labelled = rejection.replace(labels=["formality=formal emotion=sadness"])
    for name, (value,) in both.score(labelled).items():
        if name.startswith("label_probability"):
            print(f"{name} {value:.2f}")
