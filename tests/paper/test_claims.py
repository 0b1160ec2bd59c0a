from torchpfc.paper.claims import CLAIMS
from torchpfc.paper.registry import experiments


def test_claims_are_about_rows_that_there_are() -> None:
    rows = {row.id for each in experiments().values() for table in each.tables for row in table.rows}
    assert all(claim.rows <= rows for claim in CLAIMS)
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)
    assert all(claim.checks for claim in CLAIMS)
