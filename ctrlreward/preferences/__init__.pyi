from .candidates import PreferencePairs as PreferencePairs
from .candidates import best_of_n as best_of_n
from .candidates import preference_pairs as preference_pairs
from .candidates import score_preferences as score_preferences
from .candidates import write_pairs as write_pairs
