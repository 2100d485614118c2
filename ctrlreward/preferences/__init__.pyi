from .candidates import PreferencePairs as PreferencePairs
from .candidates import best_of_n as best_of_n
from .candidates import write_pairs as write_pairs
