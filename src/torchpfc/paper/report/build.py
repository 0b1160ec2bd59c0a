"""Reads result files and writes the report: a document, its figures, and a page that needs nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from torchpfc.checkpoint import write_atomically
from torchpfc.paper import registry
from torchpfc.paper.report.charts import standalone
from torchpfc.paper.report.compare import Comparison
from torchpfc.paper.report.figures import draw_figures
from torchpfc.paper.report.markdown import FIGURES, PAGE, write_document
from torchpfc.paper.report.page import write_page
from torchpfc.paper.results import Result, load_results, result_path

DOCUMENT = "paper.md"


def make_report(
    results: Path,
    out: Path,
    *,
    check: bool = False,
    experiments: Mapping[str, registry.Experiment] | None = None,
    known_data: Mapping[str, str] | None = None,
) -> list[Path]:
    """Writes what the result files say, and never trains anything.

    In `out`, `paper.md` has the tables between comments, and keeps every sentence that stands outside of them;
    `figures/paper/` has its figures and no others; `report.html` shows everything on one page. The same results give
    the same bytes.

    Args:
        results: The folder with the result files.
        out: The folder to write to; made if need be.
        check: Write nothing.
        experiments: What is compared with the paper; None takes all that are registered.
        known_data: Remarks on data sets, by the SHA-256 of their pixels.

    Returns:
        The files that have changed, or would change.
    """
    results, out = Path(results), Path(out)
    if not results.is_dir():
        raise ValueError(f"results must be a folder with result files, got {str(results)!r}; torchpfc run makes them")

    def link(result: Result) -> str:
        path = result_path(results, result.experiment, result.config, result.seed)
        return quote(Path(os.path.relpath(path, out)).as_posix())

    comparison = Comparison(registry.experiments() if experiments is None else experiments, load_results(results))
    figures = draw_figures(comparison.sheets)
    path = out / DOCUMENT
    before = path.read_text(encoding="utf-8") if path.exists() else None
    document = write_document(before, comparison, figures, known_data or {}, link)
    files = {path: document, out / PAGE: write_page(document, comparison, figures, link)}
    files |= {out / FIGURES / f"{figure.name}.svg": standalone(figure.svg) for figure in figures if figure.svg}
    return settle(files, stale=set((out / FIGURES).glob("*.svg")) - set(files), check=check)


def settle(files: Mapping[Path, str], *, stale: set[Path], check: bool) -> list[Path]:
    """Makes files as they should be, unless asked only to look; names those that were not.

    Args:
        files: What each should hold.
        stale: Files that should not be there.
        check: Whether to look only.
    """
    changed = [path for path, content in files.items() if not path.exists() or path.read_bytes() != content.encode()]
    if not check:
        for path in changed:
            write_atomically(path, files[path])
        for path in stale:
            path.unlink()
    return sorted([*changed, *stale])
