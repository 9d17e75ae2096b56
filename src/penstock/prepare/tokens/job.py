"""`pack` as a job: its plan, its parts, and how they become one dataset or a folder of token files."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock._kinds import JoinsRows
from penstock.abc import Executor, Writer
from penstock.engine.parts import PartMeta, PartName, Probe
from penstock.engine.plan import Plan, require_same
from penstock.engine.run import Wave
from penstock.engine.token_blocks import BlockWave, OneFile
from penstock.engine.token_files import FileJob, PartRange, TokenFiles, TokenOutputJob, append_range, as_parts
from penstock.engine.token_shuffle import shuffled_parts
from penstock.engine.work import SCRATCH, Work, is_complete, open_work, peek
from penstock.errors import PenstockError, PrepareError
from penstock.executors import make_executor
from penstock.formats._manifest import Provenance
from penstock.formats._planes import base_at, side_path_of
from penstock.formats.tokens.folder.index import INDEX_NAME
from penstock.order.permutation import GlobalOrder
from penstock.prepare.tokens.encode import Encoding, PackReport
from penstock.prepare.tokens.engine_choice import choose, disagreed, estimate, find_disagreement
from penstock.prepare.tokens.engines import EngineName, encode_each, load_reference
from penstock.prepare.tokens.inputs import Tasks, changed_since, default_task_bytes, text_bytes, with_digests
from penstock.prepare.tokens.request import (
    Material,
    Request,
    Statuses,
    bos_of,
    create_writer,
    find_inputs,
    load_material,
    name_inputs,
    writer_options,
)
from penstock.prepare.tokens.sidecars import kept_mask, kept_rows, settle_mask, settle_rows, shuffled_place
from penstock.prepare.tokens.tokenizer import TokenizerSpec
from penstock.prepare.tokens.vocabulary import drops_characters, unknown_id
from penstock.store._files import require_movable
from penstock.store.derived import keeping_nothing
from penstock.store.dry import dry_place
from penstock.store.local import output_exists
from penstock.store.object_folder import require_no_writer
from penstock.store.outputs import output_path, sweep_killed
from penstock.store.place import Place
from penstock.store.side_file import record_in_side_file
from penstock.types import Manifest


@dataclass
class PackJob(TokenOutputJob[PackReport]):
    """Tokenizes text to parts, and makes an output of them.

    `material` is known once the output is held; `engine`, `engine_note` (why it isn't gigatoken) and the
    plan once the work is open. `times` are the ends of the stages.
    """

    request: Request
    started: float = field(default_factory=time.perf_counter)
    material: Material = field(init=False)
    engine: EngineName = field(init=False)
    engine_note: str | None = None
    encoding: Encoding = field(init=False)
    times: list[float] = field(default_factory=list[float])
    _plan: Plan = field(init=False)
    _described: Material = field(init=False)
    _other: Manifest | None = None
    _pools: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _writers: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    preload = ("penstock.prepare.tokens.tokenize", "gigatoken")

    def __post_init__(self) -> None:
        self.output = self.request.output
        self.options = self.request.options

    # --- what differs between one dataset and a folder of token files

    @property
    def is_folder(self) -> bool:
        return self.request.is_folder

    @property
    def to(self) -> str:
        return self.request.to

    @property
    def width(self) -> int:
        return self.material.spec.token_bytes

    @property
    def file_options(self) -> dict[str, Any]:
        return writer_options(self.to, self.material.spec, self.material.recorded())

    @abstractmethod
    def rehearse_output(self, place: Place, material: Material) -> None:
        """Check that the output can be written; `place` is in a store that writes nothing."""

    @abstractmethod
    def publish(self, work: Work, wave: Any) -> Manifest:
        """Make the output visible."""

    # --- plan

    @contextlib.contextmanager
    def hold(self) -> Generator[None]:
        files, statuses = find_inputs(self.request)
        with contextlib.ExitStack() as self._pools:
            # Workers start first. They import their modules while this process reads tokenizer and inputs.
            self.pool = self._pools.enter_context(self._start_workers(files, statuses))
            before = None if self.options.restart else peek(self.folder)
            self.material = load_material(self.request, files, statuses, before)
            with self.held():
                yield

    def _start_workers(self, files: Sequence[Place], statuses: Statuses) -> contextlib.AbstractContextManager[Executor]:
        options, sizes = self.options, list[int]()
        for file in files:
            if file.is_local:
                status = statuses.get(file.path)
                sizes.append(text_bytes(file.path, file.store.size(file.path) if status is None else status.st_size))
        task_bytes = self.request.task_bytes or default_task_bytes(sum(sizes))
        most = sum(-(-size_bytes // task_bytes) for size_bytes in sizes)
        executor, alone = options.executor or "processes", most <= 1 or options.no_work
        places = {"reads": files, "writes": [self.output]}
        return make_executor(executor, options.workers, self.preload, alone=alone, most=most, **places)

    @contextlib.contextmanager
    def workers(self) -> Generator[Executor]:
        # They end before the work folder is left, so that no more parts get into it. The writer ends before them.
        with self._pools.pop_all(), contextlib.ExitStack() as self._writers:
            yield self.pool

    def adopt(self, work: Work) -> bool:
        before, material = work.plan, self.material
        self.engine, self.engine_note = choose(material, before, self.pool)
        inputs = with_digests(material.inputs, self.pool.map)  # the workers' modules are imported by now
        self.material = dataclasses.replace(material, inputs=inputs)
        plan = self.material.plan(before)
        require_same(before, plan, self.output.path)
        if before is not None and self.engine != before.engine:
            raise PrepareError(
                f"finished tasks were encoded by {before.engine}, which is no longer valid: {self.engine_note}",
                path=self.output.path,
                hint="Discard the finished work: restart (--restart)",
            )
        self._plan = dataclasses.replace(plan, engine=self.engine)
        self.times = [time.perf_counter()]
        return True

    def plan(self) -> Plan:
        return self._plan

    def require_same_inputs(self) -> None:
        """Do nothing: a finished output is recognised by the digests of its inputs."""

    @property
    def tasks(self) -> Tasks:
        return Tasks(self.material.inputs, self._plan.task_bytes)

    def part_fn(self, work: Work) -> Callable[[Any], object]:
        return self.new_encoding(work).encode_fn()

    def is_current(self, work: Work) -> bool:
        if not self.options.is_distributed or self.options.restart:
            return True
        manifest = self.manifest()
        return manifest is None or not _is_requested(self.material, manifest)

    # --- parts

    def new_encoding(self, work: Work) -> Encoding:
        return Encoding(self.material, self.engine, self._plan, work)

    def all_parts(self, work: Work) -> Sequence[PartName]:
        listed, found = work.listed(), list[PartName]()
        for task in self.tasks:
            parts = listed.get(task.number, [])
            if not is_complete(parts):
                raise PrepareError("a task ended without a part", path=task.pieces[0].place.path)
            found += parts
        return found

    def require_documents(self, work: Work) -> None:
        counts, inputs = self.encoding.counts, self.material.inputs
        if not counts.documents:
            work.clear()  # the inputs must be changed, so that this work is of no use
            path = inputs[0].path if len(inputs) == 1 else self.output.path
            what, count = "the inputs contain no documents", counts.num_dropped
            if not count:
                raise PrepareError(what, path=path, found="no line")
            skipped = f"all {count:,} lines were skipped; the first" if count > 1 else "the only line was skipped"
            reason = "".join(f": {one.reason}" for one in counts.dropped[:1])
            raise PrepareError(f"{what}: {skipped}{reason}", path=path)
        changed = changed_since(inputs)
        if changed is not None:
            raise PrepareError(
                "the input changed while it was being read",
                path=changed.path,
                hint="Don't change inputs during a run. Discard the finished work: restart (--restart)",
            )

    def in_order(self, work: Work, parts: Sequence[PartName]) -> Sequence[PartName]:
        """Return the parts of which the output consists: these, or shuffled ones that are made of them."""
        seed, width = self.request.shuffle, self.material.spec.token_bytes
        if seed is None:
            return parts
        if self.encoding.reference is not None:  # shuffled parts hold no probes
            for part in parts:
                self.encoding.compare(self.encoding.meta(part))
        order = GlobalOrder(sum(part.documents for part in parts), seed).order  # as in `penstock.shuffle`
        return shuffled_parts(work.parts, parts, shuffled_place(self.request, work), order, width, self.pool)

    def files(self, work: Work) -> TokenFiles:
        """Return the token files that are made of parts. Of these, only parts of other runs are compared again."""
        request, material, spec = self.request, self.material, self.material.spec
        of_file, of_folder = material.recorded(), material.recorded(whole=True)
        options = writer_options(request.to, spec, of_file | {"inputs": {}})  # the folder's own side file names them
        has_others = self.options.is_distributed or self.encoding.counts.reused_tasks > 0
        compare = functools.partial(_compare, spec) if self.engine == "gigatoken" and has_others else None
        parts, scratch = shuffled_place(request, work), work.place.child(SCRATCH)
        job = FileJob(self.output, parts, scratch, request.to, spec.token_bytes, options, compare)
        digests, recorded = (of_folder["tokenizer_digest"], of_folder["inputs"]), of_folder["options"] | bos_of(spec)
        provenance = Provenance(spec.eos_id, spec.name, *digests, recorded)

        def refuse(file: int, difference: str) -> PrepareError:
            return disagreed(material.inputs[file].path, difference)

        file_tokens = request.file_tokens or 1
        return TokenFiles(job, file_tokens, self.options.overwrite, provenance, work, refuse)

    # --- commit

    def commit(self, work: Work, wave: Any) -> PackReport:
        manifest = self.publish(work, wave)
        settle_rows(self.request, manifest)
        counts, output, format = self.encoding.counts, self.output, self.request.format
        if counts.unknown_tokens or counts.dropped_characters:
            unknown = {"unknown_tokens": counts.unknown_tokens, "dropped_characters": counts.dropped_characters}
            base = base_at(format, output.store, output_path(output.store, output.path))
            side_path = output.child(".penstock").path if base is None else side_path_of(format, base)
            record_in_side_file(output.store, side_path, unknown_text=unknown)
            manifest = dataclasses.replace(manifest, unknown_text=unknown)
        tokens, report = manifest.num_tokens or counts.tokens, self._report(self.encoding)
        return dataclasses.replace(report, manifest=manifest, documents=manifest.num_samples, tokens=tokens)

    @contextlib.contextmanager
    def sidecars(self, work: Work, parts: Sequence[PartName]) -> Generator[None]:
        """Write what belongs to an output that the block makes visible: row map, exclude list and loss mask."""
        counts, spec = self.encoding.counts, self.material.spec
        self.times.append(time.perf_counter())
        if unknown_id(spec) is not None or drops_characters(spec):  # parts of other runs count, too
            pieces = [piece for part in parts for piece in self.encoding.meta(part).pieces]
            counts.unknown_tokens = sum(one.unknown_tokens for one in pieces)
            counts.dropped_characters = sum(one.dropped_characters for one in pieces)
        else:
            counts.unknown_tokens = counts.dropped_characters = 0
        with kept_rows(self.encoding, parts), kept_mask(self.encoding, parts):
            yield

    # --- an output that exists

    def published(self) -> Manifest | None:
        found = self.manifest()
        if found is None:
            return None
        super().settle(found)
        material = load_material(self.request, *name_inputs(self.request), is_done=True)
        if not _is_requested(material, found):
            self._other = found
            return None
        self._described = material
        return found

    def settle(self, made: Manifest) -> None:
        settle_rows(self.request, made)
        settle_mask(self.request)

    def report_complete(self, made: Manifest) -> PackReport:
        before, unknown = peek(self.folder), made.unknown_text or {}
        return self._report_on(
            self._described,
            "" if before is None else before.engine,
            unknown_tokens=unknown.get("unknown_tokens", 0),
            dropped_characters=unknown.get("dropped_characters", 0),
            documents=made.num_samples,
            tokens=made.num_tokens,
            manifest=made,
            excluded=sum(len(one.excluded) for one in self._described.inputs),
            part=self.options.part,
            was_complete=True,
        )

    def is_own_work(self, digest: str) -> bool:
        return True

    def require_free(self) -> None:
        request = self.request
        if self.options.overwrite:
            return
        if self._other is not None:
            self._discard_work_of(self._other)
            raise output_exists(self.output.path)
        if not request.is_folder and self.output.exists():
            sweep_killed(self.output.store, request.outputs)
            raise output_exists(self.output.path)

    def _discard_work_of(self, manifest: Manifest) -> None:
        """Remove the rest of the work by which an output was made that isn't the requested one."""
        with (
            contextlib.suppress(PenstockError, OSError),
            open_work(self.output, self.folder, restart=False, shared=False) as work,
        ):
            plan = work.plan
            if plan is None:
                return
            recorded = {f"--{name.replace('_', '-')}": value for name, value in manifest.options.items()}
            recorded["--tokenizer"] = manifest.tokenizer_digest
            same_options = all(plan.options[name] == value for name, value in recorded.items() if name in plan.options)
            if same_options and dict(manifest.inputs) == {one.name: one.digest for one in plan.inputs}:
                work.clear()

    # --- reports

    @keeping_nothing()
    def rehearse(self) -> PackReport:
        request = self.request
        if not (self.options.overwrite or request.is_folder) and self.output.exists():
            raise output_exists(self.output.path)
        before = None if self.options.restart else peek(self.folder)
        material = load_material(request, *find_inputs(request), before)
        if before is not None:
            material = dataclasses.replace(material, inputs=with_digests(material.inputs))
            require_same(before, material.plan(before), self.output.path)
        self.rehearse_output(dry_place(self.output), material)
        with make_executor("inline", None) as executor:
            engine, note = choose(material, None, executor)
        documents, tokens = estimate(
            material.inputs,
            material.selection,
            lambda texts: encode_each(material.reference, texts)[0],
            with_eos=material.spec.eos is not None,
        )
        return self._report_on(material, engine, documents=documents, tokens=tokens, engine_note=note)

    def unfinished(self, work: Work, missing: tuple[int, ...] = ()) -> PackReport:
        if self.options.part is not None:
            self.times.append(time.perf_counter())
        report = self._report(self.new_encoding(work) if missing else self.encoding)
        return dataclasses.replace(report, part=self.options.part, missing=missing)

    def _report(self, encoding: Encoding) -> PackReport:
        names = ("start", "encode", "assemble", "commit") if self.request.is_folder else ("start", "encode", "commit")
        stages = zip(names, [self.started, *self.times], [*self.times, time.perf_counter()], strict=False)
        return self._report_on(
            self.material,
            self.engine,
            **encoding.counts.reported(),
            engine_note=self.engine_note,
            input_bytes=encoding.total_bytes,
            excluded=sum(len(one.excluded) for one in self.material.inputs),
            seconds={stage: after - before for stage, before, after in stages},
        )

    def _report_on(self, material: Material, engine: str, **facts: Any) -> PackReport:
        """Return a report with these facts, and those of a run that encoded nothing."""
        nothing: dict[str, Any] = {
            "input_bytes": sum(one.size_bytes for one in material.inputs),
            "seconds": {"start": time.perf_counter() - self.started},
            **{"num_dropped": 0, "dropped": (), "engine_note": None, "tasks": 0, "reused_tasks": 0},
        }
        about = {"output": self.output.path, "input_files": len(material.inputs), "eos": material.spec.eos}
        return PackReport(engine=engine, **about, **nothing | facts)


@dataclass
class PackDatasetJob(PackJob):
    """Makes one dataset: its writer takes each part while later ones are encoded, or its store joins them."""

    _parts: list[PartName] = field(default_factory=list[PartName])
    _writer: Writer = field(init=False)
    _joined: OneFile | None = None

    def held(self, output: Place | None = None) -> contextlib.AbstractContextManager[None]:
        for path in self.request.outputs if self.options.overwrite and self.output.is_local else ():
            require_movable(path)
        return super().held()

    def rehearse_output(self, place: Place, material: Material) -> None:
        writer = self._create_writer(place, material)
        as_parts(writer)
        writer.abort()

    def make_parts(self, work: Work, pool: Executor) -> None:
        self.encoding = self.new_encoding(work)
        if self.options.part is not None:
            collections.deque(self.encoding.run(pool), maxlen=0)
            return
        self._joined = self.joined(work)
        place = self.output if self._joined is None else self._joined.output
        self._writer = self._writers.enter_context(self._create_writer(place, self.material))
        self._parts = self._take_parts(pool)
        self.require_documents(work)

    def _take_parts(self, pool: Executor) -> list[PartName]:
        """Encode missing parts. The writer takes each in turn, unless parts are joined or shuffled.

        Raises:
            PrepareError: a part that another run made isn't what the tokenizer's own library encodes.
        """
        encoding, parts, width = self.encoding, list[PartName](), self.material.spec.token_bytes
        for name, is_new in encoding.run(pool):
            parts.append(name)
            meta: PartMeta | None = None
            if self._joined is None and self.request.shuffle is None:
                range_ = PartRange(name, 0, name.documents)
                meta = append_range(as_parts(self._writer), encoding.work.parts, range_, width)
            if not is_new and encoding.reference is not None:
                encoding.compare(meta or encoding.meta(name))
        return parts

    def all_parts(self, work: Work) -> Sequence[PartName]:
        return self._parts if self.options.part is None else super().all_parts(work)

    def joined(self, work: Work) -> OneFile | None:
        return None if self.request.shuffle is not None else super().joined(work)

    def publish(self, work: Work, wave: Any) -> Manifest:
        writer, width = self._writer, self.material.spec.token_bytes
        if self.request.shuffle is not None:
            folder = shuffled_place(self.request, work)
            for name in self.in_order(work, self._parts):
                append_range(as_parts(writer), folder, PartRange(name, 0, name.documents), width)
        if isinstance(wave, BlockWave) and isinstance(writer, JoinsRows):
            wave.write(writer)
        with self.sidecars(work, self._parts):
            manifest = writer.commit()
        self._writers.close()
        return manifest

    def _create_writer(self, place: Place, material: Material) -> Writer:
        to, overwrite = self.request.to, self.options.overwrite
        return create_writer(to, place, material.spec, material.recorded(), overwrite=overwrite)


@dataclass
class PackFolderJob(PackJob):
    """Makes a folder of token files, which are assembled side by side when all parts exist."""

    def rehearse_output(self, place: Place, material: Material) -> None:
        with self.held(place):
            pass

    def make_parts(self, work: Work, pool: Executor) -> None:
        require_no_writer(self.output.store, self.output.child(INDEX_NAME).path)  # now others can see this plan
        self.encoding = self.new_encoding(work)
        collections.deque(self.encoding.run(pool), maxlen=0)
        self.times.append(time.perf_counter())
        if self.options.part is None:
            self.require_documents(work)

    def wave(self, work: Work) -> Wave:
        # Files of shuffled documents are made by the commit.
        return Wave() if self.request.shuffle is not None else super().wave(work)

    def publish(self, work: Work, wave: Any) -> Manifest:
        parts, files = self.all_parts(work), self.files(work)
        in_order = self.in_order(work, parts)
        if self.request.shuffle is not None:
            files.make(self.pool, in_order)
        self.times.append(time.perf_counter())
        with self.sidecars(work, parts):
            return files.commit(in_order)


def _compare(spec: TokenizerSpec, probes: Sequence[Probe]) -> tuple[int, str] | None:
    return find_disagreement(load_reference(spec), probes)


def _is_requested(material: Material, manifest: Manifest) -> bool:
    recorded = material.recorded(whole=True)
    return recorded == {
        "tokenizer_digest": manifest.tokenizer_digest,
        "inputs": dict(manifest.inputs),
        "options": {name: manifest.options.get(name) for name in recorded["options"]},
    }
