"""Codes of findings: their meanings, and a scan of the source for these codes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "penstock"
_PREFIXES = dict.fromkeys(("fault", "Damage", "_of_error"), "flat-tokens.")
_CALLS = {"Finding", "Problem", "_problem", "_warning", "find_unlisted", *_PREFIXES}
_CODE = re.compile(r"(<format>|[a-z][a-z_-]*)(\.[a-z][a-z_-]*)+")
_PART = re.compile(r"[a-z][a-z_-]*")
_OWN_CALLS = {
    "jsonl": ("formats/jsonl", "problem"),
    "pbin": ("formats/tokens/pbin", "Problem"),
    "megatron": ("formats/tokens/megatron", "_problem"),
    "flat-tokens": ("formats/tokens/flat_tokens", "fault"),
}
"""Format → folder, and the function there that puts the format's name before a code."""
_COMPUTED = {
    "flat-tokens.first_bit.clear_elsewhere": "formats/tokens/flat_tokens",
    "flat-tokens.first_bit.set_at_starts": "formats/tokens/flat_tokens",
    "flat-tokens.seq_starts.last_equals_token_count": "formats/tokens/flat_tokens",
    "jsonl.index": "formats/jsonl",
    "jsonl.unsafe-index": "formats/jsonl",
    "pbin.index": "formats/tokens/pbin",
    "pbin.index-overlap": "formats/tokens/pbin",
    "pbin.unsafe-index": "formats/tokens/pbin",
}
"""Codes that are put together at run time, and the folder whose source has their last part."""


def codes_in_source() -> set[str]:
    """Return every code that `verify` or `repair` can report, with `<format>` for a variable format."""
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    own = {path: dict(_module_constants(tree)) for path, tree in trees.items()}
    shared = {name: text for constants in own.values() for name, text in constants.items()}
    codes: set[str] = set()
    for path, tree in trees.items():
        if not any(callee in texts[path] for callee in _CALLS):
            continue
        names = shared | own[path] | ({"NAME": "token-files"} if path.parent.name == "folder" else {})
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (callee := _name(node.func)) in _CALLS:
                reported = {_text(one, names) for one in (node.args if callee == "find_unlisted" else node.args[:1])}
                reported = {one for one in reported if _CODE.fullmatch(one)}
                prefix = _PREFIXES.get(callee)
                codes |= {f"{prefix}{one.replace('<format>', '<array>')}" for one in reported} if prefix else reported
    for format, (folder, callee) in _OWN_CALLS.items():
        parts = set(_parts_reported(SOURCE / folder, callee))
        codes |= {f"{format}.{one}" for one in parts if f"<format>.{one}" not in codes}
    codes |= {
        code
        for code, folder in _COMPUTED.items()
        if any(code.rpartition(".")[2] in texts[path] for path in (SOURCE / folder).rglob("*.py"))
    }
    return codes


def _parts_reported(folder: Path, callee: str) -> Iterator[str]:
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _name(node.func) == callee:
                yield from (text for one in node.args[:2] if _PART.fullmatch(text := _text(one, {})))


def _module_constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from _constants(node.targets[0], node.value)


def _constants(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, str]]:
    match target, value:
        case ast.Name(id=name), ast.Constant(value=str(text)):
            yield name, text
        case ast.Tuple(elts=names), ast.Tuple(elts=values):
            for one in zip(names, values, strict=True):
                yield from _constants(*one)
        case _:
            pass


def _name(callee: ast.expr) -> str:
    return callee.id if isinstance(callee, ast.Name) else callee.attr if isinstance(callee, ast.Attribute) else ""


def _text(node: ast.expr, constants: dict[str, str]) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return constants.get(name, "")
        case ast.JoinedStr(values=values):
            return "".join(_text(one, constants) for one in values)
        case ast.FormattedValue(value=value):
            return _text(value, constants) or "<format>"
        case _:
            return ""


def findings_table() -> Iterator[str]:
    """Lines of the table of findings."""
    yield from ("| code | meaning |", "|---|---|")
    yield from (f"| `{code}` | {meaning} |" for code, meaning in sorted(FINDINGS.items()))


FINDINGS: dict[str, str] = {
    "<format>.changed": "The size, counts or fingerprint of the data differ from its side file.",
    "<format>.chat-markers": "The chat template uses markers that aren't single tokens of the tokenizer.",
    "<format>.damaged": "A file can't be read.",
    "<format>.digest": "The content differs from the recorded digest.",
    "<format>.exclude-list": "The exclude list can't be read, or doesn't belong to this dataset.",
    "<format>.line": "A line is invalid.",
    "<format>.loss-mask": "A loss mask differs in length from its tokens, or has values other than 0 and 1.",
    "<format>.missing-split": "A split that the dataset lists is missing.",
    "<format>.no-eos": "Documents don't end with the id given by `--eos-id`.",
    "<format>.no-file": "A file referenced by a recipe or sample doesn't exist.",
    "<format>.old-chat": "Version 0.2.0 packed these conversations, with other rules for marks and the end of turns.",
    "<format>.pixels": "Stored pixels differ from decoded ones: 16-bit images, EXIF orientation, or alpha.",
    "<format>.plane": "A plane is missing or damaged, or its length differs from that of its tokens.",
    "<format>.plane-unlisted": "A plane exists that the side file doesn't record.",
    "<format>.planes": "The recorded planes can't be read.",
    "<format>.row-map": "The row map is damaged or belongs to other data.",
    "<format>.sample": "A sample can't be decoded.",
    "<format>.side-file": "The side file is damaged or contradicts the data.",
    "<format>.token-range": "Token ids are larger than the vocabulary (`--vocab-size`).",
    "<format>.unsafe": "Reading the data would run code or leave its directory.",
    "flat-tokens.<array>.present": "An array of the group is missing.",
    "flat-tokens.byte-order": "The numbers are big-endian.",
    "flat-tokens.chunk.crc": "A chunk differs from its checksum.",
    "flat-tokens.chunk.decode": "A chunk can't be decompressed.",
    "flat-tokens.chunk.present": "A chunk is missing.",
    "flat-tokens.chunk.size": "The size of a chunk differs from the one that the array states.",
    "flat-tokens.dataset.splits": "A split contradicts the others.",
    "flat-tokens.encoded_tokens.name": "The array of tokens has its old name.",
    "flat-tokens.encoded_tokens.present": "The array of tokens is missing.",
    "flat-tokens.first_bit.clear_elsewhere": "A token that doesn't start a sequence has the start bit.",
    "flat-tokens.first_bit.set_at_starts": "The first token of a sequence lacks the start bit.",
    "flat-tokens.group.present": "The zarr group is missing.",
    "flat-tokens.max_token_id.covers": "A token is larger than `max_token_id`.",
    "flat-tokens.max_token_id.integer": "`max_token_id` isn't an integer.",
    "flat-tokens.max_token_id.present": "`max_token_id` is missing.",
    "flat-tokens.max_token_id.range": "`max_token_id` is out of range.",
    "flat-tokens.metadata.codec": "The metadata names a codec that can't be read.",
    "flat-tokens.metadata.consolidated": "The consolidated metadata contradicts the arrays.",
    "flat-tokens.metadata.parse": "The metadata is damaged.",
    "flat-tokens.seq_starts.first_zero": "`seq_starts` doesn't begin with 0.",
    "flat-tokens.seq_starts.last_equals_token_count": "`seq_starts` doesn't end with the number of tokens.",
    "flat-tokens.seq_starts.monotone": "`seq_starts` decreases, or exceeds the number of tokens.",
    "flat-tokens.seq_starts.nonempty": "`seq_starts` has no entry.",
    "flat-tokens.seq_starts.present": "`seq_starts` is missing.",
    "flat-tokens.seq_starts.read": "`seq_starts` can't be read.",
    "flat-tokens.shard.index_crc": "The index of a zarr shard differs from its checksum.",
    "folder.added": "The side file doesn't list a file.",
    "folder.changed": "A file differs from the side file.",
    "folder.empty": "The directory has no files.",
    "folder.media-differs": "A media index row differs from the file's header.",
    "folder.media-index": "The media index is damaged.",
    "folder.media-stale": "The media index has a row for a deleted file.",
    "folder.missing": "A file in the side file is missing.",
    "hf.damaged": "An Arrow file can't be read.",
    "hf.features": "`dataset_info.json` contradicts the schema of the files.",
    "hf.unlisted": "`state.json` doesn't list an Arrow file, or `dataset_dict.json` a split.",
    "jsonl.empty": "No lines.",
    "jsonl.energon-index": "Energon's `.idx` contradicts the lines.",
    "jsonl.index": "The index isn't a list of pairs of numbers, or is truncated.",
    "jsonl.index-behind": "The file has valid lines after the last entry of its index.",
    "jsonl.index-counts-characters": "The lengths in the index count characters instead of bytes.",
    "jsonl.index-misfit": "An index entry isn't a whole line: the file changed after it was indexed.",
    "jsonl.index-outside": "An index entry points outside the file.",
    "jsonl.index-overlap": "Index entries overlap or are repeated.",
    "jsonl.invalid-line": "A line isn't valid JSON.",
    "jsonl.left-out": "The index leaves out valid lines.",
    "jsonl.no-index": "The index of Modalities, `.idx`, is missing, and Energon's too.",
    "jsonl.order": "The index entries aren't in the order of the file.",
    "jsonl.unsafe-index": "Unpickling the index would run code.",
    "levanter.absent": "A field lacks files that levanter may leave out.",
    "levanter.damaged": "The cache contradicts its ledger, or can't be read.",
    "litdata.damaged": "A chunk can't be read.",
    "litdata.missing": "A chunk of the index is missing.",
    "litdata.size": "The size of a chunk differs from the one in the index.",
    "litdata.unlisted": "The index doesn't list a chunk.",
    "megatron.apart": "Documents of the index overlap, or leave gaps.",
    "megatron.documents": "The document index contradicts the sequences.",
    "megatron.dtype": "The dtype code isn't known.",
    "megatron.empty": "The dataset has no documents.",
    "megatron.header": "The index is truncated, or isn't a Megatron index.",
    "megatron.id": "Token ids aren't in the vocabulary.",
    "megatron.index-size": "The size of the index doesn't match its counts.",
    "megatron.missing": "The `.bin` or `.idx` is missing.",
    "megatron.overlap": "Sequences overlap, with more tokens than the `.bin`.",
    "megatron.replaced": "Files of a replaced dataset are left over.",
    "megatron.sequence": "The index points to a sequence that the `.bin` does not have.",
    "megatron.tokens": "The tokens can't be read.",
    "megatron.trailing": "The `.bin` continues after its last sequence.",
    "megatron.truncated": "The `.bin` ends before its last sequence.",
    "megatron.version": "The version of the index isn't supported.",
    "megatron.width": "The index states another token width than its lengths and the size of the `.bin`.",
    "pbin.ambiguous": "Several layouts fit the file.",
    "pbin.empty": "The file has no tokens.",
    "pbin.header": "The header is truncated, or its token width is invalid.",
    "pbin.index": "The index isn't a list of pairs of numbers.",
    "pbin.index-hole": "Tokens belong to no document.",
    "pbin.index-outside": "A document is outside the tokens.",
    "pbin.index-overlap": "Documents overlap or are out of order.",
    "pbin.merged-offsets": "Offsets are too low by a multiple of 12 bytes, as after Modalities' `merge_packed_data`.",
    "pbin.no-index": "No index begins at the position that the header states.",
    "pbin.old-layout": "The file has an older layout.",
    "pbin.side-file": "The side file can't be read, or its table of documents contradicts the index.",
    "pbin.token-bytes": "The token width is wrong: lengths don't fit it, or ids look like halves or pairs of others.",
    "pbin.token-order": "The tokens have another byte order than the header.",
    "pbin.truncated": "The file is shorter than its header states.",
    "pbin.truncated-index": "The index is truncated.",
    "pbin.unfinished": "The writer was killed: the length is still 0.",
    "pbin.unsafe-index": "Unpickling the index would run code.",
    "raw-tokens.array": "The `.npy` isn't a one-dimensional array of ids.",
    "raw-tokens.empty": "The file has no tokens.",
    "raw-tokens.header": "The header is damaged.",
    "raw-tokens.id": "Token ids aren't in the vocabulary.",
    "raw-tokens.no-eos": "Documents don't end with the EOS id.",
    "raw-tokens.size": "The size isn't a multiple of the token width.",
    "raw-tokens.table": "The table of documents contradicts the tokens.",
    "raw-tokens.version": "The version of the header isn't supported.",
    "recipe.damaged": "The recipe can't be opened.",
    "recipe.missing-file": "A sample names a file that its auxiliary directory lacks.",
    "recipe.repeated": "The recipe reads the same samples under two names.",
    "samples.not-decoded": "Samples weren't decoded: that runs code, several splits exist, or opening fails.",
    "shards.config": "The writer's configuration of a shard contradicts the index.",
    "shards.empty": "A shard has no samples.",
    "shards.hash": "A shard differs from its hash in the index.",
    "shards.index": "`index.json` is damaged.",
    "shards.link": "A link leaves the directory.",
    "shards.missing": "A shard of the index is missing.",
    "shards.missing-split": "The directory `train` has neither shards nor an index.",
    "shards.no-config": "A shard lacks its embedded configuration.",
    "shards.no-index": "`index.json` is missing.",
    "shards.sample": "A sample can't be decoded.",
    "shards.shard": "A shard contradicts its own header.",
    "shards.size": "The size of a shard differs from the one in the index.",
    "shards.unfinished": "A writer didn't finish.",
    "shards.unknown-hash": "The hash algorithm isn't supported.",
    "shards.unlisted": "No index lists this shard.",
    "token-files.changed": "A file changed after the directory was indexed.",
    "token-files.counts": "The number of documents or tokens in a file differs from the one in the index.",
    "token-files.digest": "The content differs from the recorded digest.",
    "token-files.file": "A file can't be read, or is of another format than the rest.",
    "token-files.index": "`index.json` is damaged.",
    "token-files.max-token-id": "The largest id differs from the recorded one.",
    "token-files.missing": "A file of the index is missing.",
    "token-files.token-range": "Token ids aren't in the vocabulary.",
    "token-files.unfinished": "The directory isn't finished.",
    "token-files.unlisted": "The index doesn't list a token file.",
    "token-files.work": "The work directory of a finished run is left over.",
    "webdataset.after-end": "A shard has data, or more zeros than padding, after its end-of-archive mark.",
    "webdataset.changed": "A shard changed after it was prepared.",
    "webdataset.count": "The number of samples in a shard differs from the recorded one.",
    "webdataset.exclude": "An `exclude` entry matches nothing.",
    "webdataset.ignored": "Files with names such as `.TAR` or `.tar.part` are ignored.",
    "webdataset.index": "The `.tar.idx` or `.nv-meta` index is damaged.",
    "webdataset.json": "A part isn't valid JSON.",
    "webdataset.keys": "Stored keys contradict the shards.",
    "webdataset.links": "A shard has links out of it or special members.",
    "webdataset.media-differs": "Recorded media metadata differs from the sample.",
    "webdataset.media-index": "The media index is damaged.",
    "webdataset.missing-file": "A file of `.nv-meta` that the side file implies is missing.",
    "webdataset.missing-shard": "A shard of a split is missing.",
    "webdataset.name": "Energon reads a member name differently, or not at all.",
    "webdataset.no-end": "A shard has no end-of-archive mark, and may be truncated.",
    "webdataset.only-links": "A sample consists only of links.",
    "webdataset.repeated-key": "Two samples have the same key.",
    "webdataset.repeated-part": "A sample has the same part twice.",
    "webdataset.splits": "`split.yaml` is damaged.",
    "webdataset.sqlite": "`index.sqlite` is damaged or contradicts the shards.",
    "webdataset.unlisted-shard": "A shard isn't in `.info.json`.",
    "webdataset.unused": "A shard isn't in any split.",
}
"""Code → meaning."""
