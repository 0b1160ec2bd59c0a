"""What the page may ask for, checked before anything is computed."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Finite = Annotated[float, Field(allow_inf_nan=False, ge=-1e9, le=1e9)]
Number = Annotated[int, Field(ge=0, le=2**53)]


class Asked(BaseModel):
    """A request: nothing that is not named, and no text in the place of a number."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Factor(Asked):
    """How much more or less of a part there is to be."""

    part: Number
    factor: Annotated[float, Field(allow_inf_nan=False, ge=0, le=1000)]


class ExplainAsked(Asked):
    """An input, and amounts to change."""

    example: Number | None = None
    values: list[Finite] | None = None
    factors: Annotated[list[Factor], Field(max_length=200)] = []
    adapt: bool = False


class ForgetAsked(Asked):
    """Batches to forget."""

    batches: Annotated[list[Number], Field(min_length=1)]
