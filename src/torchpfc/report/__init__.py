"""Results become tables with the paper's number beside ours, figures, and one page."""

from torchpfc.report.build import make_report
from torchpfc.report.provenance import remarks

__all__ = ["make_report", "remarks"]
