"""What a killed run had finished: an output that is what was asked for is known again, and what else is left goes."""

from __future__ import annotations

import contextlib
import time

from penstock.engine.shared import SharedWork, open_shared, work_folder
from penstock.engine.tokens.files import end_killed_commit, sweep_killed_tokens
from penstock.errors import PenstockError, PrepareError
from penstock.formats import get_format
from penstock.formats.tokens.folder.files import read_index
from penstock.formats.tokens.folder.index import INDEX_NAME
from penstock.formats.tokens.folder.side import read_manifest
from penstock.prepare.tokens.planes import settle_mask
from penstock.prepare.tokens.report import PackReport
from penstock.prepare.tokens.rows import settle_rows
from penstock.prepare.tokens.understand import Material, Request, material_of, named_inputs, recorded_of_output
from penstock.store.local import output_exists
from penstock.store.outputs import sweep_killed
from penstock.types import Manifest, OpenOptions


def find_complete(request: Request) -> PackReport | None:
    """What there is to say where a killed run had made the output; raises `ConfigError` where it is another."""
    output = request.output
    published = _published(request)
    if published is not None and not request.options.restart:
        return _known_again(request, published)
    if not request.is_folder and output.exists():
        sweep_killed(output.store, request.outputs)
        raise output_exists(output.path)
    return None


def made_by_another(request: Request) -> PackReport | None:
    """What there is to say where another worker of the same plan has made the output meanwhile."""
    if not request.options.is_distributed or request.options.restart:
        return None
    with contextlib.suppress(PenstockError, OSError):
        published = _published(request)
        return None if published is None else _known_again(request, published)
    return None


def require_unmade(request: Request, material: Material, work: SharedWork) -> None:
    """That other workers have not made the output since it was looked for: else its work would be begun anew here.

    Raises:
        PrepareError: they have.
    """
    if not request.options.is_distributed or request.options.restart:
        return
    manifest = None
    with contextlib.suppress(PenstockError, OSError):
        manifest = _published(request)
    if manifest is not None and _is_asked(request, material, manifest):
        work.clear()
        raise PrepareError("another run wrote this output in the meantime", path=request.output.path)


def _published(request: Request) -> Manifest | None:
    """The side file of the output that is there, where a run left work that was killed between its commit and its end.

    A worker of a shared plan that comes late asks about every output.
    """
    if not request.options.is_distributed and not work_folder(request.output, inside=request.is_folder).is_there():
        return None
    store, path = request.output.store, request.output.path
    if request.is_folder:
        with contextlib.suppress(PenstockError, OSError):
            return read_manifest(store, path, store.get(f"{path}/{INDEX_NAME}"), read_index(store, path))
        return None
    try:
        source = get_format(request.to).open(store, path, OpenOptions())
        manifest = getattr(source, "manifest", None)
    except (PenstockError, OSError):
        return None
    return manifest if isinstance(manifest, Manifest) else None


def _known_again(request: Request, manifest: Manifest) -> PackReport:
    """Say that an output is what was asked for, and sweep what the killed run left; else raise `ConfigError`."""
    output = request.output
    sweep_killed_tokens(output, request.to, is_folder=request.is_folder)
    material = material_of(request, named_inputs(request))
    if not _is_asked(request, material, manifest):
        _forget_complete_work(request, manifest)
        raise output_exists(output.path)
    settle_rows(request, manifest)
    settle_mask(request)
    engine = ""
    folder = work_folder(output, inside=request.is_folder)
    with contextlib.suppress(PrepareError), open_shared(output, folder, restart=False, shared=False) as work:
        engine = "" if work.plan is None else work.plan.engine
        end_killed_commit(work, request.to, is_folder=request.is_folder)
        work.clear()
    return PackReport(
        output=output.path,
        documents=manifest.num_samples,
        tokens=manifest.num_tokens,
        input_files=len(material.inputs),
        input_bytes=sum(one.size_bytes for one in material.inputs),
        excluded=sum(len(one.excluded) for one in material.inputs),
        num_dropped=0,
        dropped=(),
        engine=engine,
        engine_note=None,
        tasks=0,
        reused_tasks=0,
        seconds={"start": time.perf_counter() - request.started},
        manifest=manifest,
        unknown_tokens=(manifest.unknown_text or {}).get("unknown_tokens", 0),
        dropped_characters=(manifest.unknown_text or {}).get("dropped_characters", 0),
        part=request.options.part,
        was_complete=True,
        eos=material.spec.eos,
    )


def _is_asked(request: Request, material: Material, manifest: Manifest) -> bool:
    """Whether a side file tells of what is asked for."""
    recorded = recorded_of_output(request, material)
    told = {name: manifest.options.get(name) for name in recorded["options"]}
    return recorded == {
        "tokenizer_digest": manifest.tokenizer_digest,
        "inputs": dict(manifest.inputs),
        "options": told,
    }


def _forget_complete_work(request: Request, manifest: Manifest) -> None:
    """Remove what a run that asked for another output left, if it is the one that is there."""
    folder = work_folder(request.output, inside=request.is_folder)
    with (
        contextlib.suppress(PenstockError, OSError),
        open_shared(request.output, folder, restart=False, shared=False) as work,
    ):
        plan = work.plan
        if plan is None:
            return
        recorded = {f"--{name.replace('_', '-')}": value for name, value in manifest.options.items()}
        recorded["--tokenizer"] = manifest.tokenizer_digest
        same_options = all(plan.options[name] == value for name, value in recorded.items() if name in plan.options)
        if same_options and dict(manifest.inputs) == {one.name: one.digest for one in plan.inputs}:
            work.clear()
