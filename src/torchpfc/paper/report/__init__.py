"""Results become tables with the paper's number beside ours, figures, and one page."""

from torchpfc.paper.report.build import make_report
from torchpfc.paper.report.sentences import remarks

__all__ = ["make_report", "remarks"]
