from .examination import BestOfN as BestOfN
from .examination import Examination as Examination
from .examination import best_of_n_curve as best_of_n_curve
from .examination import examine as examine
