"""Sentences in the past and in the present tense, composed of our fragments.

Each sentence exists in both tenses. They are grammatical but not always likely, and far more alike
than human-written sentences. Use scores on them only to check a recipe.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")

TENSES = ("past", "present")
_COUNTS = {"test": 200, "dev": 200, "train": 7000}
_WORDS = range(4, 16)  # of a sentence

# Verb, its past and its -ing form where they are irregular or double a letter: continuations.
# {p} is the possessive of the subject.
_VERBS = """
answer: the phone | all the questions | the letter | in a low voice
arrange arranged: the chairs | the flowers in a vase | a meeting
bake: bread | an apple pie | a cake for the party | two trays of rolls
borrow: a ladder | {p} neighbor 's drill | some money | a book from the library
break broke: a plate | the old chair | the lock of the shed
bring brought: firewood to the house | {p} lunch to work | a friend | warm clothes
build built: a shelf | a small boat | a nest box out of boards
burn: the old branches | the toast | a candle in the evening
buy bought: two tickets | fresh bread | postcards | a coat at the market
call: the plumber | {p} parents | a taxi | the office about the bill
carry: a heavy backpack | the boxes upstairs | water from the well
catch caught: the tram | a large fish | the ball with one hand
change: the light bulb | {p} plans | the sheets | trains twice
chase: the crows | a cat out of the kitchen | the bus down the hill
choose chose: a quiet table | the blue paint | a new captain
clean: the windows | the fish | {p} boots | the stove with a brush
climb: the wall | a steep hill | the stairs to the tower
close: the gate | the shop early | {p} eyes | the lid of the box
collect: stamps | the mail | shells on the beach
cook: soup | the rice | dinner for everyone | beans in a big pot
copy: the notes | the key | a map by hand
count: the coins | the sheep | the guests at the door
cover: the woodpile | the pot with a lid | the bikes with a sheet
cross: the river | the busy street | the bridge on foot
cut cut cutting: the grass | a slice of cheese | {p} hair | the rope in half
deliver: the parcels | milk to the hotel | newspapers before school
dig dug digging: a deep hole | for potatoes | a ditch along the path
draw drew: a horse | the curtains | a plan of the garden
drink drank: cold tea | a glass of milk | coffee without sugar
drive drove: a truck | to the coast | through the tunnel | the children to school
dry: the dishes | {p} hands | the herbs in the sun
eat ate: toast with jam | an apple | lunch in the park | too many plums
empty: the bins | {p} pockets | the boat with a bucket
enjoy: the view | the concert | a day without meetings
erase: the board | the last line | a wrong number
explain: the rules | the way to the station | {p} idea to the team
explore: the old town | a cave | the island by bike
feed fed: the hens | the baby | the cat at noon
fetch: the doctor | a bucket of water | the newspaper
fill: the bottles | the tank | the basket with apples
find found: a cheap room | {p} glasses | an old photo in the drawer
finish: the report | {p} homework | the puzzle | the race in time
fix: the leaking tap | the fence | the radio with a screwdriver
fold: the towels | the letter | the tent in the rain
follow: the river | a dusty road | the signs to the exit
forget forgot forgetting: the password | {p} umbrella | the date of the test
freeze froze: the berries | the leftovers | a tray of ice
gather: the leaves | wood for the fire | the children in the hall
get got getting: a letter | off the train | the keys from the porter
give gave: a short speech | the dog a bone | {p} seat to a stranger
grow grew: tomatoes | herbs on the balcony | roses along the wall
hang hung: the washing outside | a picture over the sofa | {p} coat on a hook
heat: the oven | some milk | the small room with a stove
help: the neighbors | a lost tourist | {p} aunt with the garden
hide hid: the presents | the key under a stone | {p} diary
hold held: the ladder | {p} breath | the door for the guests
invite: the whole class | an old friend | the neighbors to dinner
keep kept: a plant on the desk | the receipts | bees behind the house
knit knitted: a scarf | warm socks | a hat for the baby
lead led: the choir | the horse to the stable | a tour of the castle
learn: the song | the first poem | to swim | a few words of greek
leave left: the city | the office at five | a note on the table
lend lent: the ladder to the neighbor | {p} bike to a friend | some money
lift: the heavy box | the lid | the child onto the wall
light lit: a candle | the fire | the lamp in the hall
lock: the shed | the front door | {p} bike to the fence
lose lost: the match | {p} gloves | the map | a bet
make made: lemonade | a list | the beds | a kite out of paper
measure: the table | the depth of the pond | the windows for curtains
meet met: the new teacher | {p} cousin at noon | the guide by the gate
mend: the net | {p} old jacket | a broken toy
mix: the colors | sand and cement | the dough in a bowl
move: the sofa | the cows to the field | {p} desk to the window
mow: the lawn | the grass behind the house
open: the window | a new shop | the jar with a knife
order: a pizza | new chairs | the fish with rice
pack: the suitcase | {p} bag | a picnic for six
paint: the fence | a small portrait | the kitchen yellow
park: the truck | {p} car on the sidewalk | next to the church
pass: the exam | the salt | a quiet village
pay paid: the bill | the rent late | for the coffee
peel: the onions | an orange | potatoes over the sink
photograph: the birds | the old mill | the bride and the groom
pick: some cherries | the ripe plums | a card from the pile
plan planned: a long trip | the party | the next lesson
plant: two trees | carrots | a hedge around the yard
play: chess | the piano | football with the others | cards after dinner
polish: the shoes | the silver spoons | {p} new car
pour: the water | hot milk into a cup | tea for the guests
practice: the flute | the dance | a difficult song
prepare: the salad | {p} lesson | the boat for the winter
press: the button | some flowers in a book | the shirts
pull: the carrots out of the ground | the sled uphill | a rope
push: the cart | the door open | a wheelchair through the park
read read: the news | a thick novel | the letter twice
record: a song | the meeting | the voices of birds
remember: the address | that song | the name of the hotel
rent: a boat | a flat near the lake | two bikes for a day
repair: the roof | an old clock | the engine in the yard
return: the books | home by bus | the borrowed tent
ride rode: a horse | {p} bike to work | the tram downtown
ring rang: the bell | the bell three times
roll: the dough | a barrel into the cellar | up the carpet
row: across the lake | the boat to the island
save: some money | a seat | the files on a stick
see saw: a deer | the dentist | the mountains from the train
sell sold: ice cream | {p} old car | vegetables at the market
send sent: a letter home | a parcel | the photos to the family
set set setting: the table | a trap | the alarm for six
sew sewed: a button on | new curtains | a costume for the play
shake shook: the bottle | {p} head | the rug outside
share: a room | the last cake | an umbrella with a stranger
show showed: the map to the driver | {p} drawings | the way
shut shut shutting: the gate | the windows | {p} book with a bang
sign: the contract | the visitors ' book | a card for the nurse
sing sang: a song in the music room | in a choir | the baby to sleep
skip skipped: breakfast | a page | the second lesson
slice: the bread | a cucumber | the ham for the buffet
smell: the roses | smoke | the soup before dinner
sort: the mail | the buttons by color | the old photos
spend spent: too much money | an hour in the bath | the night in a tent
spill: the juice | coffee on the carpet | some paint
stack: the boxes | firewood against the wall | the plates
steal stole: an apple | the show | a look at the answers
stir stirred: the soup | the paint with a stick
study: the map | for the exam | the stars through a telescope
sweep swept: the yard | the stairs | leaves off the path
swim swam swimming: across the bay | in the cold lake | ten laps
take took: the train | a short nap | notes | {p} shoes to the cobbler
taste: the sauce | the wine | every cheese on the plate
teach taught: the violin | small children | {p} dog a trick
tear tore: the page | an old sheet into strips | a hole in {p} shirt
tell told: a joke | the truth | the children a story
throw threw: the ball | a stone into the pond | the javelin
tie tied: a knot | {p} shoes | the goat to a post
translate: the menu | an old letter | the poem into french
trim trimmed: the hedge | {p} beard | the wick of the lamp
try tried: the soup | a new recipe | the door at the back
turn: the page | left at the bank | the meat on the grill
use: a sharp knife | the back door | an old map
visit: the museum | the cathedral with a guide | {p} grandmother
wait: at the gate | for the bus | in a long line
wake woke: the baby | at dawn | the guests for breakfast
walk: home | along the river | the dog before work
wash: the big pan | {p} hair | the car on sundays
watch: the final | a film in bed | the birds at the feeder
water: the lawn | the beans | the plants of the neighbors
wear wore: a red scarf | heavy boots | {p} best suit to the wedding
weigh: the parcel | the flour | the fish on a scale
win won winning: a medal | the first round | a goldfish at the fair
wipe: the table | {p} glasses | the board with a sponge
wrap wrapped: the gift | the bread in a cloth | {p} hands around a cup
write wrote: a postcard | the answer on the board | to the mayor
"""

# Subject: its person (1, 2, 3, or p for plural) and its possessive.
_SUBJECTS = """
i 1 my | you 2 your | we p our | they p their | he 3 his | she 3 her
my mother 3 her | my father 3 his | my cousin 3 his | our neighbor 3 her | our guests p their
the old woman 3 her | a young man 3 his | the two sisters p their | the twins p their
the teacher 3 her | the pupils p their | the gardener 3 his | the farmers p their | the cook 3 his
the new nurse 3 her | the tourists p their | her husband 3 his | his wife 3 her | the coach 3 his
peter 3 his | anna 3 her | maria 3 her | daniel 3 his | laura 3 her | paul 3 his
my friends p their | the boys p their | the girls p their | a tall girl 3 her | the mayor 3 her
"""

# Past and present form.
_TIMES = """
yesterday / today | last week / this week | last month / this month | last year / this year
back then / these days | at that time / at this time | that summer / this summer
last night / tonight | the other day / nowadays | that morning / this morning
"""
_MOMENTS = """
then / now | at that moment / at this moment | at the time / at the moment
"""
_PLACES_AND_MANNERS = """
in the morning | with a friend | without help | very slowly | in silence | before noon
on fridays | with great care | after the storm | once a week | for fun | as usual
"""
_CLAUSES = """
because it was late / because it is late | because it rained / because it rains
although it was cold / although it is cold | until it got dark / until it gets dark
because the shop was closed / because the shop is closed
while the others slept / while the others sleep | when the bell rang / when the bell rings
although nobody liked the idea / although nobody likes the idea
because the boss insisted / because the boss insists
before the guests arrived / before the guests arrive | after the rain stopped / after the rain stops
while the baby was sleeping / while the baby is sleeping
because there was no bus / because there is no bus
although the street was empty / although the street is empty
whenever the sun shone / whenever the sun shines | because the dog barked / because the dog barks
as soon as the fog lifted / as soon as the fog lifts
"""
_STATES = """
tired after the walk | happy about the news | late for work | nervous before the exam | at home
in the kitchen | ready for the trip | sick | afraid of the dog | proud of the team | very hungry
bored at the party | on the roof | alone in the house | angry about the noise | in a hurry
"""
_REPORTS = """
said that / say that / says that | believed that / believe that / believes that
knew that / know that / knows that | complained that / complain that / complains that
noticed that / notice that / notices that | doubted that / doubt that / doubts that
"""
_QUESTION_WORDS = "why | when | where | how often"


class _Verb(NamedTuple):
    base: str
    past: str
    ing: str
    objects: tuple[str, ...]

    def present(self, person: str) -> str:
        if person != "3":
            return self.base
        if self.base.endswith(("s", "x", "z", "ch", "sh", "o")):
            return f"{self.base}es"
        return f"{self.base[:-1]}ies" if _ends_in_consonant_y(self.base) else f"{self.base}s"


class _Subject(NamedTuple):
    text: str
    person: str
    possessive: str

    def be(self) -> tuple[str, str]:
        past = "was" if self.person in "13" else "were"
        return past, {"1": "am", "3": "is"}.get(self.person, "are")

    def do(self) -> tuple[str, str]:
        return "did", "does" if self.person == "3" else "do"


_Both = tuple[str, str]  # a text in the past and in the present


def make(name: str, path_of: Callable[[str], Path]) -> bytes:
    """Return a file of sentences, one a line.

    `past.train.txt`, `present.train.txt`, and the same with `dev` and `test`: of each pair of
    sentences that differ in tense alone, one is in one of the files. `reference.past.txt` and
    `reference.present.txt`: each test sentence of that tense, a tab, and the same in the other.
    """
    return _content()[name].encode()


@cache
def _content() -> dict[str, str]:
    pairs = _pairs()
    content = {}
    for split, count in _COUNTS.items():
        for own, tense in enumerate(TENSES):
            rows = [next(pairs) for _ in range(count)]
            content[f"{tense}.{split}.txt"] = "".join(f"{pair[own]}\n" for pair in rows)
            if split == "test":
                lines = (f"{pair[own]}\t{pair[1 - own]}\n" for pair in rows)
                content[f"reference.{tense}.txt"] = "".join(lines)
    return content


def _pairs() -> Iterator[_Both]:
    """Yield distinct sentences in both tenses, which differ."""
    sentences = _Sentences(random.Random(0))
    seen: set[str] = set()
    while True:
        pair = sentences.draw()
        words = {len(text.split()) for text in pair}
        if pair[0] == pair[1] or seen & set(pair) or min(words) < 4 or max(words) > 15:
            continue
        seen.update(pair)
        yield pair


class _Sentences:
    """Draws sentences. Only `random()` is used, which gives the same numbers in any Python."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator
        self.verbs = [_verb(line) for line in _VERBS.strip().splitlines()]
        self.subjects = [_subject(each) for each in _split(_SUBJECTS)]
        self.times, self.moments, self.clauses = map(_both, (_TIMES, _MOMENTS, _CLAUSES))
        self.others = [(each, each) for each in _split(_PLACES_AND_MANNERS)]
        self.states, self.reports = _split(_STATES), _split(_REPORTS)
        self.kinds: Sequence[Callable[[], _Both]] = (
            *(self._statement,) * 4,
            *(self._fronted, self._with_clause, self._progressive) * 2,
            *(self._negated, self._question, self._asked, self._state, self._modal),
            *(self._reported, self._two_actions, self._progressive_question),
        )

    def draw(self) -> _Both:
        return self._one(self.kinds)()

    def _statement(self) -> _Both:
        return self._end(self._clause(self._one(self.subjects)), self._adverb())

    def _fronted(self) -> _Both:
        return self._end(self._one(self.times), (",", ","), self._clause(self._one(self.subjects)))

    def _with_clause(self) -> _Both:
        return self._end(self._clause(self._one(self.subjects)), self._one(self.clauses))

    def _negated(self) -> _Both:
        subject = self._one(self.subjects)
        verb, rest = self._action(subject)
        past, present = (f"{subject.text} {do} n't {verb.base} {rest}" for do in subject.do())
        return self._end((past, present), self._adverb())

    def _question(self) -> _Both:
        subject = self._one(self.subjects)
        verb, rest = self._action(subject)
        past, present = (f"{do} {subject.text} {verb.base} {rest}" for do in subject.do())
        return self._end((past, present), self._adverb(), mark="?")

    def _asked(self) -> _Both:
        past, present = self._question()
        word = self._one(_split(_QUESTION_WORDS))
        return f"{word} {past}", f"{word} {present}"

    def _progressive(self) -> _Both:
        subject = self._one(self.subjects)
        verb, rest = self._action(subject)
        past, present = (f"{subject.text} {be} {verb.ing} {rest}" for be in subject.be())
        return self._end((past, present), self._one([*self.moments, *self.clauses, ("", "")]))

    def _progressive_question(self) -> _Both:
        subject = self._one(self.subjects)
        verb, rest = self._action(subject)
        past, present = (f"{be} {subject.text} {verb.ing} {rest}" for be in subject.be())
        return self._end((past, present), self._one([*self.moments, ("", "")]), mark="?")

    def _state(self) -> _Both:
        subject, state = self._one(self.subjects), self._one(self.states)
        no = self._one(("", "", " not"))
        past, present = (f"{subject.text} {be}{no} {state}" for be in subject.be())
        return self._end((past, present), self._one([*self.times, *self.clauses]))

    def _modal(self) -> _Both:
        subject = self._one(self.subjects)
        verb, rest = self._action(subject)
        can = self._one((("could", "can"), ("could n't", "ca n't"), ("had to", "have to")))
        if can[0] == "had to" and subject.person == "3":
            can = ("had to", "has to")
        past, present = (f"{subject.text} {each} {verb.base} {rest}" for each in can)
        return self._end((past, present), self._adverb())

    def _reported(self) -> _Both:
        subject, other = self._one(self.subjects), self._one(self.subjects)
        past, plural, singular = _split(self._one(self.reports), "/")
        said = (past, singular if subject.person == "3" else plural)
        text = (f"{subject.text} {said[0]}", f"{subject.text} {said[1]}")
        return self._end(text, self._clause(other))

    def _two_actions(self) -> _Both:
        subject = self._one(self.subjects)
        verb, rest = self._action(subject)
        then = (f"and then {verb.past} {rest}", f"and then {verb.present(subject.person)} {rest}")
        return self._end(self._clause(subject), then)

    def _clause(self, subject: _Subject) -> _Both:
        verb, rest = self._action(subject)
        return (
            f"{subject.text} {verb.past} {rest}",
            f"{subject.text} {verb.present(subject.person)} {rest}",
        )

    def _action(self, subject: _Subject) -> tuple[_Verb, str]:
        verb = self._one(self.verbs)
        return verb, self._one(verb.objects).format(p=subject.possessive)

    def _adverb(self) -> _Both:
        return self._one([*self.times, *self.others, ("", ""), ("", "")])

    def _one(self, items: Sequence[Item]) -> Item:
        return items[int(self.generator.random() * len(items))]

    @staticmethod
    def _end(*parts: _Both, mark: str = ".") -> _Both:
        past, present = (
            " ".join(filter(None, (*texts, mark))) for texts in zip(*parts, strict=True)
        )
        return past, present


def _verb(line: str) -> _Verb:
    forms, _, objects = line.partition(": ")
    base, *irregular = forms.split()
    past = irregular[0] if irregular else _suffixed(base, "ed")
    doubled = past == f"{base}{base[-1]}ed"
    ing = irregular[1] if len(irregular) > 1 else _suffixed(past[:-2] if doubled else base, "ing")
    return _Verb(base, past, ing, tuple(_split(objects)))


def _suffixed(base: str, suffix: str) -> str:
    if base.endswith("ie") and suffix == "ing":
        return f"{base[:-2]}ying"
    if suffix == "ed" and _ends_in_consonant_y(base):
        return f"{base[:-1]}ied"
    return f"{base[:-1] if base.endswith('e') and not base.endswith('ee') else base}{suffix}"


def _ends_in_consonant_y(base: str) -> bool:
    return base.endswith("y") and base[-2] not in "aeiou"


def _subject(text: str) -> _Subject:
    name, person, possessive = text.rsplit(" ", 2)
    return _Subject(name, person, possessive)


def _both(text: str) -> list[_Both]:
    halves = (_split(each, "/") for each in _split(text))
    return [(past, present) for past, present in halves]


def _split(text: str, separator: str = "|") -> list[str]:
    return [each.strip() for each in text.strip().replace("\n", separator).split(separator)]
