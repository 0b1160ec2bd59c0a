"""The server: routes from addresses to what the session says, and the files of the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from importlib.resources import files
from typing import Annotated

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from torchpfc.explorer.guard import Guard
from torchpfc.explorer.session import Session

MOST_BYTES = 256 * 1024
"""The largest body of a request, unless inputs are so large that one needs more."""

BYTES_PER_NUMBER = 32
MOST_LISTED = 200

STATIC = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    **{
        f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8")
        for name in ("app", "api", "dom", "pictures", "parts", "input", "drawing", "time", "forget")
    },
}
"""The page: which address gives which file, and its type. Nothing else is ever read."""

Index = Annotated[int, Path(ge=0, le=2**31)]
Finite = Annotated[float, Field(allow_inf_nan=False, ge=-1e9, le=1e9)]
Number = Annotated[int, Field(ge=0, le=2**53)]


class Asked(BaseModel):
    """A request, checked before anything is computed: nothing that is not named, and no text in place of a number."""

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


def create_app(session: Session, *, host: str = "127.0.0.1") -> Guard:
    """Makes the application that answers for a session.

    Args:
        session: The model and the examples.
        host: The address that the server listens on, which decides the names that it answers to.
    """
    app = FastAPI(title="torchpfc explorer", docs_url=None, redoc_url=None, openapi_url=None)
    _add_page(app)
    _add_views(app, session)
    _add_changes(app, session)
    _add_refusals(app)
    return Guard(app, host, max(MOST_BYTES, BYTES_PER_NUMBER * session.num_features))


def _add_page(app: FastAPI) -> None:
    folder = files("torchpfc.explorer") / "static"
    for address, (name, kind) in STATIC.items():
        app.add_api_route(address, _giver((folder / name).read_bytes(), kind), methods=["GET"], response_model=None)


def _giver(content: bytes, kind: str) -> Callable[[], Response]:
    return lambda: Response(content, media_type=kind)


def _add_views(app: FastAPI, session: Session) -> None:
    @app.get("/api/model", response_model=None)
    def model() -> Response:
        return JSONResponse({**asdict(session.model()), "can_adapt": session.can_adapt})

    @app.get("/api/parts", response_model=None)
    def parts() -> Response:
        return JSONResponse({"parts": [part.__dict__ for part in session.parts()]})

    @app.get("/api/parts/{number}", response_model=None)
    def part(number: Index) -> Response:
        return JSONResponse(session.part(number).to_dict())

    @app.get("/api/examples", response_model=None)
    def examples(
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 40,
        label: Annotated[int | None, Query(ge=0, le=2**31)] = None,
        wrong: bool = False,
    ) -> Response:
        found, total = session.list_examples(offset, limit, label=label, wrong=wrong)
        return JSONResponse({"examples": [example.__dict__ for example in found], "total": total})

    @app.post("/api/explain", response_model=None)
    def explain(asked: ExplainAsked) -> Response:
        factors = {factor.part: factor.factor for factor in asked.factors}
        view = session.explain(example=asked.example, values=asked.values, factors=factors, adapt=asked.adapt)
        return JSONResponse(asdict(view))

    @app.get("/api/batches", response_model=None)
    def batches() -> Response:
        return JSONResponse({"batches": [batch.__dict__ for batch in session.batches()]})

    @app.get("/api/time", response_model=None)
    def time() -> Response:
        return JSONResponse(asdict(session.time()))


def _add_changes(app: FastAPI, session: Session) -> None:
    @app.post("/api/forget/preview", response_model=None)
    def preview(asked: ForgetAsked) -> Response:
        return JSONResponse(session.preview(asked.batches).to_dict())

    @app.post("/api/forget", response_model=None)
    def forget(asked: ForgetAsked) -> Response:
        return JSONResponse(session.forget(asked.batches).to_dict())

    @app.post("/api/undo", response_model=None)
    def undo() -> Response:
        return JSONResponse(asdict(session.undo()))

    @app.get("/api/report", response_model=None)
    def report() -> Response:
        content = json.dumps(session.report(), indent=1) + "\n"
        headers = {"content-disposition": 'attachment; filename="torchpfc-forget-report.json"'}
        return Response(content, media_type="application/json", headers=headers)


def _add_refusals(app: FastAPI) -> None:
    """Turns what is wrong with a request into one sentence, and repeats nothing of what was sent."""

    def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place = ".".join(str(part)[:40] for part in first.get("loc", ())[1:])
        return _refuse(422, f"{place or 'the request'}: {first.get('msg', 'is not valid')}")

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(ValueError, lambda _, error: _refuse(422, str(error)))
    app.add_exception_handler(KeyError, lambda _, error: _refuse(404, str(error.args[0])))
    app.add_exception_handler(LookupError, lambda _, error: _refuse(409, str(error)))


def _refuse(status: int, problem: str) -> Response:
    return JSONResponse({"problem": problem}, status_code=status)
