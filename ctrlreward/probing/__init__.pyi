from .examination import Examination as Examination
from .examination import examine as examine
