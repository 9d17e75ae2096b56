"""The folder of token files that a run of `pack` makes of parts: what is said of it, and who compares what."""

from __future__ import annotations

import contextlib
import functools
from contextlib import AbstractContextManager

from penstock.abc import Executor
from penstock.engine.shared import SCRATCH, SharedWork
from penstock.engine.tokens.assemble import FileJob
from penstock.engine.tokens.files import TokenFiles, held_folder
from penstock.errors import PrepareError
from penstock.formats._manifest import Provenance
from penstock.prepare.tokens.assemble import bos_of, differs, writer_options
from penstock.prepare.tokens.encode import Books
from penstock.prepare.tokens.engines import EngineName
from penstock.prepare.tokens.one_file import shuffled_place
from penstock.prepare.tokens.oracle import disagreed
from penstock.prepare.tokens.understand import Material, Request, recorded_of, recorded_of_output
from penstock.store._files import require_movable


def held_output(request: Request) -> AbstractContextManager[None]:
    """Hold the folder that is made; one dataset is held by its writer, and only asked whether it can be replaced."""
    if not request.is_folder:
        for path in request.outputs if request.options.overwrite and request.output.is_local else ():
            require_movable(path)
        return contextlib.nullcontext()
    return held_folder(request.output, overwrite=request.options.overwrite, shared=request.options.is_distributed)


def token_files(
    request: Request, material: Material, work: SharedWork, executor: Executor, engine: EngineName, books: Books
) -> TokenFiles:
    """The token files that are made of parts; of these only parts of others are compared again."""
    spec = material.spec
    of_file, of_folder = recorded_of(request, material), recorded_of_output(request, material)
    options = writer_options(request.to, spec, of_file | {"inputs": {}})  # the folder's own side file names them
    compared = engine == "gigatoken" and (request.options.is_distributed or books.reused_tasks > 0)
    compare = functools.partial(differs, spec) if compared else None
    scratch = work.place.child(SCRATCH)
    job = FileJob(
        request.output, shuffled_place(request, work), scratch, request.to, spec.token_bytes, options, compare
    )
    given = Provenance(
        spec.eos_id, spec.name, of_folder["tokenizer_digest"], of_folder["inputs"], of_folder["options"] | bos_of(spec)
    )

    def refuse(file: int, difference: str) -> PrepareError:
        return disagreed(material.inputs[file].path, difference)

    return TokenFiles(job, request.file_tokens or 1, request.options.overwrite, given, work, executor, refuse)
