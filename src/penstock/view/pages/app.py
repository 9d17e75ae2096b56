"""The application: paths and pages."""

from __future__ import annotations

import secrets
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.errors import NotFound
from penstock.view.draw.blocks import Fault
from penstock.view.pages import datasets, parts, runs, work
from penstock.view.pages.jobs import Jobs
from penstock.view.pages.site import Handler, Site, answer, handled
from penstock.view.pages.targets import Targets

_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_STATIC = {
    "colours.css": "static/colours.css",
    "blocks.css": "static/blocks.css",
    "style.css": "pages/static/style.css",
    "page.js": "pages/static/page.js",
    "mark.svg": "pages/static/mark.svg",
    "htmx.js": "pages/static/vendor/htmx-2.0.11.min.js",
    "uplot.js": "pages/static/vendor/uplot-1.6.32.iife.min.js",
    "uplot.css": "pages/static/vendor/uplot-1.6.32.min.css",
}
"""Path of a static resource → its file in the package."""

PAGES: dict[str, Handler] = {
    "/": datasets.first,
    "/shelf": datasets.shelf,
    "/d/{name}/": datasets.overview,
    "/d/{name}/samples": datasets.samples,
    "/d/{name}/sample/{index}": datasets.sample,
    "/d/{name}/tokens": datasets.tokens,
    "/d/{name}/find": work.find,
    "/d/{name}/health": work.health,
    "/d/{name}/compare": work.compare,
    "/r/{name}/": runs.run,
    "/r/{name}/step": runs.step,
    "/r/{name}/window": runs.window,
    "/r/{name}/reads": runs.reads,
    "/r/{name}/compare": runs.compare,
    "/d/{name}/lengths.csv": parts.lengths,
    "/d/{name}/shards.csv": parts.shards,
    "/r/{name}/curves.csv": parts.curves,
    "/d/{name}/part/{index}/{part:path}": parts.part,
    "/d/{name}/small/{index}/{part:path}": parts.small,
    "/r/{name}/small/{position}/{part:path}": parts.decoded,
}
"""Path → page. Variable parts are names chosen by the server, an index, or a part of a sample, never file paths."""

FORMS: dict[str, Handler] = {
    "/d/{name}/health/start": work.start_health,
    "/d/{name}/health/stop": work.stop_health,
    "/d/{name}/compare/start": work.start_compare,
    "/d/{name}/compare/stop": work.stop_compare,
}
"""Path → action of a form; only forms of our own pages are accepted."""


def make_app(targets: Targets) -> Starlette:
    routes = [Route(path, handled(handler), methods=["GET", "HEAD"]) for path, handler in PAGES.items()]
    routes += [Route(path, handled(handler), methods=["POST"]) for path, handler in FORMS.items()]
    routes += [Route(f"/static/{name}", static, methods=["GET", "HEAD"]) for name in _STATIC]
    app = Starlette(routes=routes, exception_handlers={404: _nowhere, 405: _nowhere})
    app.router.redirect_slashes = False
    jobs = Jobs()
    app.state.jobs = jobs
    app.state.site = Site(targets, jobs, secrets.token_urlsafe(24))
    return app


async def static(request: Request) -> Response:
    name = request.scope["path"].rpartition("/")[2]
    found = resources.files("penstock.view") / _STATIC[name]
    kind = next(kind for suffix, kind in _TYPES.items() if name.endswith(suffix))
    return Response(found.read_bytes(), headers={"content-type": kind, "cache-control": "private, max-age=3600"})


async def _nowhere(request: Request, error: Any) -> Response:
    return answer(request, "fault.html", error.status_code, fault=_NOWHERE)


_NOWHERE = Fault(NotFound("page not found").what, hint="Go to Home")
