"""Learning classes one after another, so that each batch can be taken out again as if it had never been seen."""

from torchpfc.continual.cones import ConeCoupling
from torchpfc.continual.learner import ContinualPFC
from torchpfc.continual.portion import Portion
from torchpfc.continual.readout import Likeness, RidgeReadout
from torchpfc.continual.scaling import Scale, Sketch
from torchpfc.continual.views import Shifts

__all__ = [
    "ConeCoupling",
    "ContinualPFC",
    "Likeness",
    "Portion",
    "RidgeReadout",
    "Scale",
    "Shifts",
    "Sketch",
]
